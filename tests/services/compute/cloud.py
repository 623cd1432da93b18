"""A control plane in this process for machines: real store, server and worker around a fake engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from neocloud.control_plane import lifecycle
from neocloud.control_plane.settings import Settings
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services import compute, iam
from neocloud.services.compute.types import InstanceStateEnum
from neocloud.testing.api_calls import call, sign_in
from tests.services.compute import network

DEADLINE_SECONDS = 20.0
COMPUTE = "nebius.compute.v1"
FAMILY = "ubuntu24.04-driverless"
IMAGE_ID = "computeimage-e00-ubuntu24-04-driverless"
IMAGE_BYTES = 3 << 30


@dataclass(frozen=True)
class Cloud:
    running: lifecycle.ControlPlane
    engine: FakeEngine
    machines: FakeMachines
    channel: grpc.aio.Channel
    token: str
    settings: Settings = field(default_factory=Settings)

    @property
    def project(self) -> str:
        return self.running.first.project_id

    async def call(self, method: str, request: Any = None, /, *, mask: str = "", **fields: Any) -> Any:
        """A method of compute: call("DiskService/Get", id=...)."""
        path = f"{COMPUTE}.{method}" if not method.startswith("n") else method
        rpc = contract.method(path)
        message = request if request is not None else contract.from_dict(rpc.input, fields)
        metadata = [("authorization", f"Bearer {self.token}")]
        if mask:
            metadata.append(("x-resetmask", mask))
        return await call(self.channel, path, message, metadata)

    async def refusal(self, method: str, request: Any = None, /, **fields: Any) -> contract.ApiError:
        """The error that this call is answered with."""
        try:
            await self.call(method, request, **fields)
        except grpc.aio.AioRpcError as error:
            details = dict(error.trailing_metadata() or ())
            return contract.from_status(details["grpc-status-details-bin"])  # type: ignore[arg-type]
        raise AssertionError(f"{method} was not refused")

    async def create(self, noun: str, name: str, spec: Mapping[str, Any]) -> str:
        operation = await self.call(
            f"{noun}Service/Create", metadata={"parent_id": self.project, "name": name}, spec=spec
        )
        return operation.resource_id

    async def get(self, noun: str, resource_id: str) -> Any:
        return await self.call(f"{noun}Service/Get", id=resource_id)

    async def update(self, noun: str, resource: Any, *, mask: str = "") -> Any:
        request = contract.message(f"{COMPUTE}.Update{noun}Request")(
            metadata=resource.metadata, spec=resource.spec
        )
        request.metadata.resource_version = 0
        return await self.call(f"{noun}Service/Update", request, mask=mask)

    async def machine(self, name: str = "one", **spec: Any) -> Any:
        """A new instance that runs."""
        identifier = await self.create("Instance", name, instance_spec(**spec))
        return await self.until_state(identifier, "RUNNING")

    async def until_state(self, instance_id: str, state: str) -> Any:
        return await self.until(
            "Instance", instance_id, lambda found: InstanceStateEnum.Name(found.status.state) == state
        )

    async def until(self, noun: str, resource_id: str, wanted: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            found = await self.get(noun, resource_id)
            if wanted(found):
                return found
            assert time.monotonic() < deadline, f"it stays as it is: {found}"
            await asyncio.sleep(0.01)

    async def until_gone(self, resource_id: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while await self.running.store.read(lambda tx: tx.get(resource_id)):
            assert time.monotonic() < deadline, f"{resource_id} is still there"
            await asyncio.sleep(0.01)

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
    for folder, record in (
        ("launcher", {"name": "launcher:test"}),
        (
            f"machine/{FAMILY}",
            {"name": FAMILY, "family": FAMILY, "title": "Test", "minimum_bytes": IMAGE_BYTES},
        ),
    ):
        path = home / "images" / folder / "image.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    settings = Settings(home=home, grpc_port=0, http_port=0, starting_seconds=starting_seconds)
    await engine.apply(network.engine_network())
    async with (
        lifecycle.control_plane(_composition(settings, engine)) as control_plane,
        grpc.aio.insecure_channel(control_plane.server.addresses.grpc) as channel,
    ):
        token = await sign_in(channel, control_plane.first.credentials)
        yield Cloud(control_plane, engine, machines, channel, token, settings)


def _composition(settings: Settings, engine: FakeEngine) -> lifecycle.Composition:
    clock = SystemClock()

    async def bootstrap(store: Any) -> iam.Bootstrap:
        first = await iam.bootstrap(store, clock)
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
        services=(iam.SERVICE, compute.SERVICE, network.SERVICE),
        bootstrap=bootstrap,
        authenticator=lambda store: iam.StoreAuthenticator(store, clock),
        authorizer=lambda store: iam.StoreAuthorizer(store, clock),
    )
