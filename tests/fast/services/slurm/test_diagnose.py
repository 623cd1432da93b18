"""JobService.Diagnose: what is run where, as whom, and what is refused."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from neocloud.emulator.fakes import FakeSlurmApi
from neocloud.engines.base import ExecResult
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.slurm_records import SlurmJob
from tests.fast.services.slurm.cloud import fake_cloud

JOBS = "neocloud.slurm.v1.JobService"
REPORT = (
    b'{"node": "worker-0", "ranks": [{"rank": 0, "times": [], "stacks": [], "why": ["x"], "moved": null}]}'
)


def job(**changes: Any) -> SlurmJob:
    times = (None, None, None, None)
    fields = (7, "train", "lou", "RUNNING", "", ("worker-0",), *times, 0, "", 0, "main")
    return SlurmJob(**{**vars(SlurmJob(*fields)), **changes})


@pytest.fixture
async def cluster(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimpleNamespace]:
    """A cluster with one job, whose login node records the commands that it runs."""
    state = SimpleNamespace(job=job(), said=ExecResult(0, REPORT, b""), ran=[])

    async def find(self: Any, job_id: int) -> SlurmJob | None:
        return state.job if job_id == 7 else None

    async def nothing(self: Any, job_id: int) -> None:
        return None

    async def run(self: Any, cluster_id: str, command: Any, **options: Any) -> ExecResult:
        state.ran.append((list(command), options))
        return state.said

    monkeypatch.setattr(FakeSlurmApi, "job", find)
    monkeypatch.setattr(FakeSlurmApi, "finished_job", nothing)
    monkeypatch.setattr(SlurmAccess, "run_in_login_shell", run)
    async with fake_cloud(tmp_path) as cloud:
        created = await cloud.create_cluster(count=1)

        async def diagnose(job_id: int = 7) -> Any:
            request = {"cluster_id": created.metadata.id, "job_id": job_id}
            return await cloud.call(f"{JOBS}/Diagnose", request)

        state.diagnose = diagnose
        yield state


async def refusal(cluster: SimpleNamespace, job_id: int = 7) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.diagnose(job_id)
    return refused.value.code(), refused.value.details() or ""


async def test_it_runs_as_the_jobs_user_with_arguments_apart_from_the_script(
    cluster: SimpleNamespace,
) -> None:
    found = await cluster.diagnose()
    assert [(rank.rank, rank.node) for rank in found.ranks] == [(0, "worker-0")]
    ((command, options),) = cluster.ran
    assert command[:3] == ["/bin/bash", "-l", "-c"] and command[5:8] == ["lou", "7", "1"]
    assert " lou" not in command[3] and "setpriv" in command[3]
    assert options["stdin"][int(command[9]) :].startswith(b"\x7fELF"), "the probe, and then py-spy"


@pytest.mark.parametrize(
    "user", ["", "-u", "lou;reboot", "../root", "$(id)", "lou root", "a" * 65, "\x1b[2J", "lou\nroot"]
)
async def test_a_user_whose_name_is_none_is_refused_before_anything_runs(
    cluster: SimpleNamespace, user: str
) -> None:
    cluster.job = job(user=user)
    code, _ = await refusal(cluster)
    assert code is grpc.StatusCode.FAILED_PRECONDITION and not cluster.ran


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED", "SUSPENDED"])
async def test_only_a_running_job_is_looked_at(cluster: SimpleNamespace, state: str) -> None:
    cluster.job = job(state=state)
    _, text = await refusal(cluster)
    assert "only a running job" in text and not cluster.ran


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (ExecResult(0, b"\x1b[2J", b""), "cannot be used"),
        (ExecResult(0, REPORT.replace(b"worker-0", b"worker-9"), b""), "not a node of the job"),
        (ExecResult(1, REPORT, b"srun: error: \x1b[2Jdenied"), "denied"),
    ],
)
async def test_what_a_job_prints_in_the_probes_place_is_refused(
    cluster: SimpleNamespace, said: ExecResult, text: str
) -> None:
    cluster.said = said
    _, found = await refusal(cluster)
    assert text in found and "\x1b" not in found


async def test_a_job_that_is_not_there_is_not_found(cluster: SimpleNamespace) -> None:
    code, _ = await refusal(cluster, 8)
    assert code is grpc.StatusCode.NOT_FOUND
