"""A control plane in this process: real store, server and worker around a fake engine and a fake Slurm."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from neocloud.control_plane.composition import ControlPlane, control_plane
from neocloud.control_plane.settings import Settings
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.registry import ServiceRegistry
from neocloud.emulator.fake_slurm import FakeSlurm
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.slurm.access import SlurmFactory
from neocloud.testing.api_calls import call, sign_in

DEADLINE_SECONDS = 20.0


@dataclass(frozen=True)
class FakeCloud:
    running: ControlPlane
    engine: FakeEngine
    world: FakeWorld
    slurm: FakeSlurm
    channel: grpc.aio.Channel
    token: str


@asynccontextmanager
async def fake_cloud(home: Path, world: FakeWorld | None = None) -> AsyncIterator[FakeCloud]:
    world = world or FakeWorld()
    engine, slurm = FakeEngine(world), FakeSlurm(world)
    image = home / "images" / "slurm" / "image.json"
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_text('{"name": "slurm"}')
    settings = Settings(home=home, grpc_port=0, http_port=0)
    overrides = ServiceRegistry().add(SlurmFactory, slurm.connect)
    async with (
        control_plane(settings, engine, clock=SystemClock(), overrides=overrides) as running,
        grpc.aio.insecure_channel(running.server.addresses.grpc) as channel,
    ):
        token = await sign_in(channel, running.first.credentials)
        yield FakeCloud(running, engine, world, slurm, channel, token)


async def ask(cloud: FakeCloud, method: str, request: Any, *headers: tuple[str, str]) -> Any:
    """Call a method of neocloud.slurm.v1 as the first service account."""
    metadata = (("authorization", f"Bearer {cloud.token}"), *headers)
    return await call(cloud.channel, f"neocloud.slurm.v1.{method}", request, metadata)


async def create_cluster(cloud: FakeCloud, *, count: int, name: str = "bank") -> Any:
    """Create, and wait until READY."""
    request = contract.message("neocloud.slurm.v1.CreateClusterRequest")()
    request.metadata.parent_id = cloud.running.first.project_id
    request.metadata.name = name
    request.spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=count)
    operation = await ask(cloud, "ClusterService/Create", request)
    return await ready(cloud, operation.resource_id)


async def ready(cloud: FakeCloud, cluster_id: str) -> Any:
    get = contract.message("neocloud.slurm.v1.GetClusterRequest")(id=cluster_id)
    state = contract.enum("neocloud.slurm.v1.ClusterStatus.State")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        cluster = await ask(cloud, "ClusterService/Get", get)
        if cluster.status.state == state.Value("READY"):
            return cluster
        assert time.monotonic() < deadline, f"not READY: {cluster.status}"
        await asyncio.sleep(0.02)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it is true; what it says is the message when it never is."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "never became true"
        await asyncio.sleep(0.02)


async def gone(cloud: FakeCloud, resource_id: str) -> None:
    """Wait until the resource's row is gone."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while await cloud.running.store.read(lambda tx: tx.get(resource_id)):
        assert time.monotonic() < deadline, f"{resource_id} is still there"
        await asyncio.sleep(0.02)
