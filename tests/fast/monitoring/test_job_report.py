"""From the agent of a worker to the report of a job: series of GPUs, and what a tenant reads of its own.

GPUs are `simulated`: agents say what the stand-in for NVML would have them say. Slurm is a fake.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeSlurm, FakeSlurmApi
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.fleet.agent import delivery, gpu_use_json
from neocloud.fleet.agent.gpu_use_json import GpusSaid
from neocloud.fleet.nodes.gpu_use import MEASURES, GpuUse
from neocloud.services.fleet import node_agents
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.public import WorkerAgents
from neocloud.services.slurm.slurm_records import Json, SlurmJob
from neocloud.testing.waiting import until
from tests.control_plane import cloud_in_process
from tests.fast.monitoring.cloud import MeasuredCloud
from tests.fast.monitoring.conftest import Store
from tests.fast.services.fleet.test_node_agents import Pod
from tests.fast.services.slurm.test_accounting import row, tres

H100 = "NVIDIA H100 80GB HBM3"
USE = {"utilisation": 90.0, "tensor_active": 0.5, "power": 600.0, "memory_used": 70_000.0}
JOBS = "neocloud.slurm.v1.JobService"
JOB = 7
STARTED = int(time.time()) - 3600
"""Long before its cluster was made here, and within what the store keeps."""
SECONDS = 600


@dataclass
class Agents:
    """Implements `WorkerAgents`: the agents' own code, whose GPUs are made up."""

    folder: Path
    gpus: Sequence[GpuUse] = (GpuUse(0, H100, USE),)
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda said: said
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])

    async def ask(self, cluster_id: str, worker: str, **how: Any) -> bytes:
        if worker not in self.pods:
            (self.folder / worker).mkdir(parents=True)
            self.pods[worker] = Pod(self.folder / worker)
        pod = self.pods[worker]
        delivery.write_last(pod.base / "last", pod.said())
        said = GpusSaid(pod.now, self.gpus, "a stand-in for NVML answers for the GPUs")
        text = json.dumps(self.change(gpu_use_json.to_json(said)))
        (pod.base / "last" / gpu_use_json.FILE).write_text(text)
        return (await pod.ask(cluster_id, worker, **how)).replace(b'"worker-0"', f'"{worker}"'.encode())

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        await self.pods[worker].install(cluster_id, worker, program, seconds)


class SlurmWithAJob(FakeSlurmApi):
    async def finished_job(self, job_id: int) -> SlurmJob | None:
        times = [datetime.fromtimestamp(at, UTC) for at in (STARTED, STARTED, STARTED + SECONDS)]
        made: dict[str, Any] = {name: "" for name in SlurmJob.__dataclass_fields__}
        made |= {"id": JOB, "name": "train", "user": "mona", "state": "COMPLETED", "nodes": ()}
        made |= {"exit_code": 0, "restarts": 0, "eligible_at": None, "is_configuring": False}
        made |= {"array_job_id": 0, "exit_signal": 0, "user_id": 1000}
        made |= dict(zip(("submitted_at", "started_at", "finished_at"), times, strict=True))
        return SlurmJob(**made) if job_id == JOB else None

    async def accounting_rows(self, job_id: int) -> Sequence[Json]:
        times = {"start": STARTED, "end": STARTED + SECONDS}
        return [row(job_id=JOB, time=times, tres={"allocated": [tres("gres", 2, "gpu")]})]


@pytest.fixture(autouse=True)
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_EVERY", "ASK_QUIET", "ASK_AGAIN"):
        monkeypatch.setattr(node_agents, name, 0.3)


class Slurm(FakeSlurm):
    def connect(self, address: str, key: bytes) -> SlurmWithAJob:
        found = super().connect(address, key)
        return SlurmWithAJob(self, found._world, found._namespace)


@asynccontextmanager
async def cloud_with_gpus(home: Path, agents: Agents) -> AsyncIterator[MeasuredCloud]:
    world = FakeWorld()
    slurm = Slurm(world)
    async with cloud_in_process(
        home,
        FakeEngine(world, responder=slurm.respond),
        overrides=ServiceRegistry().add(SlurmFactory, slurm.connect).add(WorkerAgents, agents),
        images={"slurm": {"name": "slurm"}},
    ) as cloud:
        yield MeasuredCloud(**vars(cloud), slurm=slurm)


def labels(cloud: MeasuredCloud, cluster: str, node: str) -> str:
    of = f'cluster="{cluster}",cluster_name="bank",gpu="0",modelName="{H100}",node="{node}"'
    return f'{of},project="{cloud.project_id}"'


async def test_what_agents_say_of_gpus_becomes_series_of_their_cluster_and_project(tmp_path: Path) -> None:
    agents = Agents(tmp_path / "agents")
    async with cloud_with_gpus(tmp_path / "home", agents) as cloud:
        cluster = await cloud.watched_cluster(2, 0)
        for node in ("worker-0", "worker-1"):
            named = labels(cloud, cluster, node)
            await cloud.sample_appears(f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{named}}} 0.5")
        text = await cloud.sample_appears(f"DCGM_FI_DEV_POWER_USAGE{{{named}}} 600.0")
        samples = [line for line in text.splitlines() if line.startswith("DCGM_")]
        assert len(samples) == 2 * len(USE), "what a GPU does not tell is no series, and never 0"
        node = f'cluster="{cluster}",cluster_name="bank",node="worker-0",project="{cloud.project_id}"'
        assert f"neocloud_fleet_node_gpus_simulated{{{node}}} 1.0" in text
        agents.gpus = ()
        await until(lambda: no_gpus(cloud), seconds=20)


async def no_gpus(cloud: MeasuredCloud) -> bool:
    return not [line for line in (await cloud.samples()).splitlines() if line.startswith("DCGM_")]


async def test_an_agent_cannot_make_up_labels_or_ever_new_series(tmp_path: Path) -> None:
    """A model that is on no list is "other"; an answer with anything else is refused as a whole."""
    many = [GpuUse(index, f'H100"}} 1\\n{index}', {"power": 1.0}) for index in range(64)]
    agents = Agents(tmp_path / "agents", many)
    agents.change = lambda said: {
        **said,
        "gpus": [{**each, "model": f"x{n}"} for n, each in enumerate(said["gpus"])],
    }
    async with cloud_with_gpus(tmp_path / "home", agents) as cloud:
        cluster = await cloud.watched_cluster(1, 0)
        other = labels(cloud, cluster, "worker-0").replace(H100, "other")
        text = await cloud.sample_appears(f"DCGM_FI_DEV_POWER_USAGE{{{other}}} 1.0")
        assert len([line for line in text.splitlines() if line.startswith("DCGM_")]) == 64
        agents.change = lambda said: {**said, "gpus": [{**said["gpus"][0], "project": "project-of-another"}]}

        async def is_refused() -> bool:
            said = await cloud.call("neocloud.fleet.v1.NodeService/ListEvents", id=f"{cluster}/worker-0")
            return any("gpus[0] has a field" in str(each) for each in said.items)

        await until(is_refused, seconds=20, poll_seconds=0.2)
        assert "project-of-another" not in await cloud.samples()


async def report(cloud: MeasuredCloud, cluster: str) -> Any:
    return await cloud.call(f"{JOBS}/Report", cluster_id=cluster, job_id=JOB)


async def test_the_report_of_a_job_has_what_its_gpus_did_while_it_ran(store: Store, tmp_path: Path) -> None:
    """OBS-06: TFLOP/s are the activity of tensor cores times the peak of the model."""
    async with cloud_with_gpus(tmp_path, Agents(tmp_path / "agents")) as cloud:
        cluster = await cloud.watched_cluster(2, 0)
        (run,) = (await report(cloud, cluster)).runs
        assert "no readings" in run.gpu_use.not_known[0] and not run.gpu_use.HasField("energy_joules")
        await store.add(readings(cloud.project_id, cluster))
        found = await report(cloud, cluster)
    use = found.runs[0].gpu_use
    assert use.gpus == 2 and use.coverage > 0.95 and use.is_simulated and not use.not_known
    assert use.utilisation_percent == pytest.approx(80) and use.tensor_active == pytest.approx(0.4)
    assert use.peak_tflops == 2 * 989 and use.estimated_tflops == pytest.approx(0.8 * 989)
    assert use.energy_joules == pytest.approx(1000 * SECONDS)
    assert not found.not_known and not found.node_events, "its nodes were made later"


def readings(project: str, cluster: str) -> str:
    """Return series of the job's two GPUs, and of others that are no part of it."""
    told = {"worker-0": (90, 0.5, 600), "worker-1": (70, 0.3, 400), "worker-2": (1, 0.01, 70)}
    made: list[str] = []
    places = [(project, cluster, STARTED, 0), ("project-of-another", cluster, STARTED, 9)]
    for owner, of, start, more in [*places, (project, cluster, STARTED - 2 * SECONDS, 9)]:
        for node, (use, active, power) in told.items():
            where = f'project="{owner}",cluster="{of}",node="{node}"'
            gpu = f'{where},gpu="{more}",modelName="{H100}"'
            for second in range(0, SECONDS + 1, 15):
                at = (start + second) * 1000
                made.append(f"{MEASURES['utilisation'].series}{{{gpu}}} {use} {at}")
                made.append(f"{MEASURES['tensor_active'].series}{{{gpu}}} {active} {at}")
                made.append(f"{MEASURES['power'].series}{{{gpu}}} {power} {at}")
                made.append(f"neocloud_fleet_node_gpus_simulated{{{where}}} 1 {at}")
    return "\n".join(made) + "\n"


async def test_a_report_without_a_store_of_metrics_says_so(tmp_path: Path) -> None:
    async with cloud_with_gpus(tmp_path / "home", Agents(tmp_path / "agents")) as cloud:
        cluster = await cloud.watched_cluster(1, 0)
        found = await report(cloud, cluster)
    assert "neo up --metrics" in found.runs[0].gpu_use.not_known[0]
    assert found.runs[0].gpus == 2 and found.runs[0].nodes == "worker-[0-1]"
