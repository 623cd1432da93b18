"""A control plane in this process for machines: real store, server and worker around a fake engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.control_plane import lifecycle
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services import billing, compute, iam, operator
from neocloud.settings.settings import Settings
from tests import control_plane
from tests.fast.services.compute import network
from tests.fast.services.iam import keys

FAMILY = "ubuntu24.04-driverless"
IMAGE_ID = "computeimage-e00-ubuntu24-04-driverless"
IMAGE_BYTES = 3 << 30


@dataclass
class Cloud(control_plane.Cloud):
    api = "nebius.compute.v1"

    machines: FakeMachines

    async def update(self, noun: str, resource: Any, *, mask: str = "") -> Any:
        request = contract.message(f"{self.api}.Update{noun}Request")(
            metadata=resource.metadata, spec=resource.spec
        )
        request.metadata.resource_version = 0
        return await self.call(
            f"{noun}Service/Update", request, headers={"x-resetmask": mask} if mask else None
        )

    async def machine(self, name: str = "one", **spec: Any) -> Any:
        """A new instance that runs."""
        identifier = await self.create("Instance", name, instance_spec(**spec))
        return await self.until(identifier, "RUNNING")

    async def history(self, resource_id: str) -> list[str]:
        entries = await self.running.store.read(lambda tx: tx.history(resource_id=resource_id))
        states = [entry.state for entry in entries]
        return [state for index, state in enumerate(states) if index == 0 or states[index - 1] != state]

    def pod(self, instance_id: str) -> Any:
        return self.engine.world.pods.get(Reference("Pod", instance_id, instance_id))


def instance_spec(**changes: Any) -> dict[str, Any]:
    """The usual machine; None as a value leaves a field out."""
    spec = {
        "resources": {"platform": "cpu-local", "preset": "1vcpu-1gb"},
        "boot_disk": boot_disk(),
        "network_interfaces": [
            {"name": "eth0", "subnet_id": network.SUBNET_ID, "ip_address": {}, "public_ip_address": {}}
        ],
    } | changes
    return {name: value for name, value in spec.items() if value is not None}


def boot_disk(name: str = "one-boot", **changes: Any) -> dict[str, Any]:
    source = {"source_image_family": {"image_family": FAMILY}}
    spec = {"size_gibibytes": 10, "type": "NETWORK_SSD", **source} | changes
    return {"attach_mode": "READ_WRITE", "managed_disk": {"name": name, "spec": spec}}


def existing(disk_id: str, mode: str = "READ_WRITE", **fields: Any) -> dict[str, Any]:
    return {"attach_mode": mode, "existing_disk": {"id": disk_id}, **fields}


@asynccontextmanager
async def machine_cloud(
    home: Path, world: FakeWorld | None = None, *, starting_seconds: float = 0.0, **engine_options: Any
) -> AsyncIterator[Cloud]:
    world = world or FakeWorld()
    machines = FakeMachines(world)
    engine = FakeEngine(world, responder=machines.respond, **engine_options)
    await engine.apply(network.engine_network())
    machine = {"name": FAMILY, "family": FAMILY, "title": "Test", "minimum_bytes": IMAGE_BYTES}
    async with control_plane.cloud_in_process(
        home,
        engine,
        images={"launcher": {"name": "launcher:test"}, f"machine/{FAMILY}": machine},
        composed=_composition,
        starting_seconds=starting_seconds,
    ) as cloud:
        yield Cloud(**vars(cloud), machines=machines)


def _composition(settings: Settings, engine: FakeEngine) -> lifecycle.Composition:
    clock = SystemClock()

    async def bootstrap(store: Any) -> iam.Bootstrap:
        first = await iam.bootstrap(store, clock, make_key=keys.next_rsa_key)
        await compute.sync_public_images(store, settings, clock)

        def seed(tx: Any) -> None:
            if tx.get(network.NETWORK_ID) is None:
                network.insert_network(tx, first.project_id, clock)

        await store.write(seed)
        return first

    return lifecycle.Composition(
        settings=settings,
        engine=engine,
        clock=clock,
        services=(iam.SERVICE, compute.SERVICE, network.SERVICE, operator.SERVICE, billing.SERVICE),
        bootstrap=bootstrap,
        authenticator=lambda store: iam.StoreAuthenticator(store, clock),
        authorizer=lambda store: iam.StoreAuthorizer(store, clock),
    )
