"""`neo slurm job` (SJOB-01, SJOB-02, SJOB-10): batch jobs without ssh."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, cluster, serve_clusters

JOBS = "neocloud.slurm.v1.JobService"


def job(state: str = "RUNNING", **fields: Any) -> Any:
    return contract.from_dict(
        contract.message("neocloud.slurm.v1.Job"),
        {"id": "7", "name": "train", "user": "root", "state": state, **fields},
    )


def read_log(text: bytes, ends_after: int) -> Callable[[Any], Any]:
    """Serves a log five bytes at a time; it is complete after so many calls."""
    calls = 0

    def answer(request: Any) -> Any:
        nonlocal calls
        calls += 1
        piece = text[request.offset : request.offset + 5]
        end = request.offset + len(piece)
        is_complete = end == len(text) and calls >= ends_after
        return contract.method(f"{JOBS}/ReadLog").output(data=piece, next_offset=end, is_complete=is_complete)

    return answer


@pytest.fixture
def bank(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr("neocloud.cli.commands.slurm.job.POLL_SECONDS", 0.001)
    serve_clusters(cloud, cluster("bank"))
    cloud.serve(f"{JOBS}/Submit", contract.method(f"{JOBS}/Submit").output(job_id=7))
    return cloud


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.sbatch"
    file.write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n")
    return file


def test_submit_sends_the_script_with_its_arguments(signed_in: Neo, bank: FakeServer, script: Path) -> None:
    ran = signed_in(
        "slurm",
        "job",
        "submit",
        "bank",
        str(script),
        "--env",
        "SEED=1",
        "--dependency",
        "afterok:6",
        "--",
        "--epochs",
        "3",
    )
    assert ran.code == 0, ran.err
    assert ran.out == "Submitted job 7\n"
    [request] = bank.asked(f"{JOBS}/Submit")
    assert request.script == script.read_text()
    assert list(request.arguments) == ["--epochs", "3"]
    assert dict(request.environment) == {"SEED": "1"}
    assert (request.name, request.file_name, request.dependency, request.cluster_id) == (
        "",
        "train",
        "afterok:6",
        "slurmcluster-e00bank",
    )


def test_submit_as_json_gives_the_number_to_programs(signed_in: Neo, bank: FakeServer, script: Path) -> None:
    assert json.loads(signed_in("slurm", "job", "submit", "bank", str(script), "-o", "json").out) == {
        "job_id": 7
    }


def test_wait_tells_every_state_and_ends_with_the_job(signed_in: Neo, bank: FakeServer, script: Path) -> None:
    states = iter([job("PENDING", reason="Licenses"), job("RUNNING", nodes=["worker-0"]), job("COMPLETED")])
    bank.serve(f"{JOBS}/Get", lambda request: next(states))
    ran = signed_in("slurm", "job", "submit", "bank", str(script), "--wait")
    assert ran.code == 0
    assert [line.split(" after")[0] for line in ran.err.splitlines()] == [
        "Job 7: PENDING (Licenses: waits for licenses)",
        "Job 7: RUNNING on worker-0",
        "Job 7: COMPLETED",
    ]


def test_a_job_that_fails_fails_the_waiting_command(signed_in: Neo, bank: FakeServer, script: Path) -> None:
    bank.serve(f"{JOBS}/Get", job("FAILED", exit_code="2"))
    ran = signed_in("slurm", "job", "submit", "bank", str(script), "--wait")
    assert ran.code == 1
    assert "Job 7 ended as FAILED. See its output: neo slurm job logs bank 7." in ran.err


def test_a_script_that_is_not_there_is_misuse(signed_in: Neo, bank: FakeServer, tmp_path: Path) -> None:
    ran = signed_in("slurm", "job", "submit", "bank", str(tmp_path / "no.sbatch"))
    assert ran.code == 2
    assert "cannot be read: No such file or directory" in ran.err


def test_list_shows_state_time_and_nodes(signed_in: Neo, bank: FakeServer) -> None:
    done = job(
        "COMPLETED", started_at="2026-11-01T10:00:00Z", finished_at="2026-11-01T10:02:05Z", nodes=["worker-1"]
    )
    bank.serve(
        f"{JOBS}/List",
        contract.method(f"{JOBS}/List").output(items=[done, job("PENDING", reason="Priority")]),
    )
    lines = signed_in("slurm", "job", "list", "bank").out.splitlines()
    assert lines[1].split() == ["7", "train", "root", "COMPLETED", "2", "min", "05", "s", "worker-1", "0"]
    assert "Priority" in lines[2]
    signed_in("slurm", "job", "list", "bank", "--active")
    assert [request.active_only for request in bank.asked(f"{JOBS}/List")] == [False, True]


def test_logs_prints_what_is_there_and_stops(signed_in: Neo, bank: FakeServer) -> None:
    bank.serve(f"{JOBS}/ReadLog", read_log(b"hello\xffworld", ends_after=100))
    bank.serve(f"{JOBS}/Get", job("RUNNING"))
    ran = signed_in("slurm", "job", "logs", "bank", "7")
    assert ran.code == 0
    assert ran.out == "hello\ufffdworld"


def test_logs_follow_goes_on_until_the_job_has_ended(signed_in: Neo, bank: FakeServer) -> None:
    """While nothing is there to print, the job's state is shown beside it."""
    bank.serve(f"{JOBS}/ReadLog", read_log(b"step 1\nstep 2\n", ends_after=8))
    bank.serve(f"{JOBS}/Get", job("RUNNING"))
    ran = signed_in("slurm", "job", "logs", "bank", "7", "--follow")
    assert ran.out == "step 1\nstep 2\n"
    assert "Job 7: RUNNING" in ran.err


def test_cancel(signed_in: Neo, bank: FakeServer) -> None:
    bank.serve(f"{JOBS}/Cancel", contract.method(f"{JOBS}/Cancel").output())
    ran = signed_in("slurm", "job", "cancel", "bank", "7")
    assert ran.code == 0
    assert bank.asked(f"{JOBS}/Cancel")[0].job_id == 7


def test_an_unknown_job_is_not_found(signed_in: Neo, bank: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.not_found("job", "9")

    for method in ("Get", "ReadLog", "Cancel"):
        bank.serve(f"{JOBS}/{method}", refuse)
    for verb in ("get", "logs", "cancel"):
        ran = signed_in("slurm", "job", verb, "bank", "9")
        assert ran.code == 3
        assert "Cluster bank has no job 9. `neo slurm job list bank` lists its jobs." in ran.err


def test_logs_of_a_job_that_has_printed_nothing_say_so(signed_in: Neo, bank: FakeServer) -> None:
    bank.serve(f"{JOBS}/ReadLog", read_log(b"", ends_after=100))
    bank.serve(f"{JOBS}/Get", job("RUNNING"))
    ran = signed_in("slurm", "job", "logs", "bank", "7")
    assert (ran.code, ran.out) == (0, "") and "Job 7 has printed nothing yet." in ran.err


def test_an_interrupted_wait_says_that_the_job_goes_on(
    signed_in: Neo, bank: FakeServer, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    bank.serve(f"{JOBS}/Get", job("RUNNING"))
    monkeypatch.setattr("neocloud.cli.commands.slurm.job.time.sleep", interrupt)
    ran = signed_in("slurm", "job", "submit", "bank", str(script), "--wait")
    assert ran.code == 130
    assert "Job 7 keeps running. Follow it: neo slurm job logs bank 7 --follow; cancel it: " in ran.err


def test_logs_and_get_take_the_newest_job_unless_one_is_named(signed_in: Neo, bank: FakeServer) -> None:
    older, newest = job("COMPLETED", id="3"), job("COMPLETED", id="12", name="hello")
    bank.serve(f"{JOBS}/List", contract.method(f"{JOBS}/List").output(items=[newest, older]))
    bank.serve(f"{JOBS}/ReadLog", read_log(b"worker-0\n", ends_after=2))
    ran = signed_in("slurm", "job", "logs", "bank")
    assert (ran.code, ran.out) == (0, "worker-0\n")
    assert "Job 12 (hello)" in ran.err
    assert bank.asked(f"{JOBS}/ReadLog")[0].job_id == 12
    bank.serve(f"{JOBS}/Get", newest)
    shown = signed_in("slurm", "job", "get", "bank", "-o", "json")
    assert json.loads(shown.out)["id"] == "12"


def test_a_cluster_without_jobs_says_how_to_submit_one(signed_in: Neo, bank: FakeServer) -> None:
    bank.serve(f"{JOBS}/List", contract.method(f"{JOBS}/List").output())
    ran = signed_in("slurm", "job", "logs", "bank")
    assert ran.code == 3 and "has run no jobs" in ran.err and "neo slurm job submit bank" in ran.err


def test_an_emulated_cluster_takes_no_jobs_and_says_so(
    signed_in: Neo, bank: FakeServer, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that /usr/local/lib/neocloud/enter-root was not found."""
    monkeypatch.setattr("neocloud.cli.commands.slurm.job.is_emulated", lambda profile: True)
    ran = signed_in("slurm", "job", "submit", "bank", str(script))
    assert ran.code == 1 and "Cluster bank is emulated: no Slurm runs" in ran.err
    assert not bank.asked("neocloud.slurm.v1.JobService/Submit")
