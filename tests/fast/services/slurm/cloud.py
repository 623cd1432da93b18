"""A control plane in this process around a fake engine and a fake Slurm."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core.readers import ServiceRegistry
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.emulator.fakes import FakeSlurm
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.engines.fake.faults import Faults
from neocloud.services.slurm.access import SlurmFactory
from tests import control_plane


@dataclass
class FakeCloud(control_plane.Cloud):
    api = "neocloud.slurm.v1"

    slurm: FakeSlurm

    @property
    def world(self) -> FakeWorld:
        return self.engine.world

    async def create_cluster(self, *, count: int, name: str = "bank", **node_set: Any) -> Any:
        """Create, and wait until READY. `node_set` has more of its node set."""
        workers = {
            "name": "worker",
            "platform": "cpu-local",
            "preset": "1vcpu-4gb",
            "count": count,
            **node_set,
        }
        return await self.until(await self.create("Cluster", name, {"node_sets": [workers]}), "READY")


@asynccontextmanager
async def fake_cloud(
    home: Path,
    world: FakeWorld | None = None,
    faults: Faults | None = None,
    engine: Callable[..., FakeEngine] = FakeEngine,
    others: ServiceRegistry | None = None,
    collectors: CertificateFiles | None = None,
) -> AsyncIterator[FakeCloud]:
    world = world or FakeWorld()
    slurm = FakeSlurm(world)
    async with control_plane.cloud_in_process(
        home,
        engine(world, faults=faults, responder=slurm.respond),
        overrides=(others or ServiceRegistry()).add(SlurmFactory, slurm.connect),
        images={"slurm": {"name": "slurm"}},
        collectors=collectors,
    ) as cloud:
        yield FakeCloud(**vars(cloud), slurm=slurm)
