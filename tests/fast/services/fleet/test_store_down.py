"""PostgreSQL is down for ten minutes: no record of an agent is lost or doubled, nothing is decided meanwhile,
and the server continues."""

import json
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane.composition import compose
from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeSlurm
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.fleet.agent import delivery
from neocloud.fleet.nodes.events import Status
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.public import NODE_POOL, WorkerAgents
from neocloud.testing.postgres import Postgres, stoppable_postgres
from neocloud.testing.waiting import until
from tests.control_plane import Cloud, cloud_in_process
from tests.fast.services.fleet.test_node_agents import Pod, verdict

NODES = "neocloud.fleet.v1.NodeService"
MINUTES = 10
WAIT_SECONDS = 300.0


class SlurmCloud(Cloud):
    api = "neocloud.slurm.v1"


class ShiftedClock(SystemClock):
    """Shows a later time than it is; sleeps are as long as they say."""

    shift = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.shift


class Agents:
    """The agents of all workers: their own code over real spools."""

    def __init__(self, folder: Path, clock: ShiftedClock) -> None:
        self.folder, self.clock = folder, clock
        self.pods: dict[str, Pod] = {}

    def pod(self, worker: str) -> Pod:
        if worker not in self.pods:
            (self.folder / worker).mkdir(parents=True)
            self.pods[worker] = Pod(self.folder / worker)
        pod = self.pods[worker]
        pod.now = self.clock.now().timestamp()
        return pod

    async def ask(self, cluster_id: str, worker: str, **how: Any) -> bytes:
        pod = self.pod(worker)
        delivery.write_last(pod.base / "last", pod.said())
        return (await pod.ask(cluster_id, worker, **how)).replace(b'"worker-0"', f'"{worker}"'.encode())

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        await self.pod(worker).install(cluster_id, worker, program, seconds)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with stoppable_postgres() as server:
        yield server


async def test_ten_minutes_without_the_store(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, world = ShiftedClock(), FakeWorld()
    slurm, agents = FakeSlurm(world), Agents(tmp_path / "agents", clock)
    engine = FakeEngine(world, responder=slurm.respond)
    overrides = ServiceRegistry().add(SlurmFactory, slurm.connect).add(WorkerAgents, agents)
    async with cloud_in_process(
        tmp_path / "home",
        engine,
        images={"slurm": {"name": "slurm"}},
        composed=lambda settings, engine: compose(settings, engine, clock, overrides),
        database_url=postgres.address,
    ) as found:
        cloud = SlurmCloud(**vars(found))
        workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 2}
        cluster = await cloud.create("Cluster", "bank", {"node_sets": [workers], "auto_repair": True})

        async def serving() -> bool:
            return await phases(cloud, cluster) == {"worker-0": "in_service", "worker-1": "in_service"}

        await until(serving, seconds=WAIT_SECONDS, poll_seconds=0.2)
        before = await logged(cloud)

        postgres.stop()
        engine.kill(Reference("Pod", cluster, "worker-1"))
        for minute in range(MINUTES):
            clock.shift += timedelta(minutes=1)
            agents.pod("worker-0").writes(
                verdict("mount_missing", (Status.FAIL, Status.PASS)[minute % 2], minute)
            )
        await until(lambda: _says(caplog, "cannot use its store"), seconds=WAIT_SECONDS, poll_seconds=0.05)
        assert not agents.pod("worker-0").spool.has_acknowledged()
        back_at = clock.now().timestamp()
        postgres.start()

        async def is_recorded() -> bool:
            return len(_records(await logged(cloud))) >= MINUTES

        await until(is_recorded, seconds=WAIT_SECONDS, poll_seconds=0.2)

        async def is_drained() -> bool:
            return any(each["type"] == "DrainRequested" for each in (await logged(cloud))[len(before) :])

        await until(is_drained, seconds=WAIT_SECONDS, poll_seconds=0.2)
        await until(agents.pod("worker-0").spool.has_acknowledged, seconds=WAIT_SECONDS, poll_seconds=0.2)
        after = await logged(cloud)
        assert after[: len(before)] == before
        assert _records(after) == [f"v{minute}" for minute in range(MINUTES)]
        decided = [each for each in after[len(before) :] if each["type"] in ("DrainRequested", "StepStarted")]
        assert all(each["at"] >= back_at and each["node"] == "worker-1" for each in decided), decided
        assert (await phases(cloud, cluster))["worker-0"] == "in_service", "checks in shadow drain nothing"


def _says(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR)


def _records(events: Sequence[dict[str, Any]]) -> list[str]:
    return [
        each["id"] for each in events if each.get("check") == "mount_missing" and each["node"] == "worker-0"
    ]


async def phases(cloud: Cloud, cluster: str) -> dict[str, str]:
    found = await cloud.call(f"{NODES}/List", cluster_id=cluster)
    return {node.name: node.phase for node in found.items}


async def logged(cloud: Cloud) -> list[dict[str, Any]]:
    """Return all events of the one pool."""

    def read(tx: Any) -> list[bytes]:
        (pool,) = tx.list(NODE_POOL)[0]
        return [each.body for each in tx.events(pool.id)]

    return [json.loads(each) for each in await cloud.running.store.read(read)]
