"""Arrays, waits and ends of jobs as `neo slurm job` shows them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.cli.commands.slurm.job_lookup import _has_task, label
from neocloud.cli.commands.slurm.job_text import ending, reason_sentence
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, cluster, serve_clusters

JOBS = "neocloud.slurm.v1.JobService"


def job(number: int, state: str = "COMPLETED", **fields: Any) -> Any:
    known = {"id": str(number), "name": "arr", "user": "root", "state": state, **fields}
    return contract.from_dict(contract.message("neocloud.slurm.v1.Job"), known)


def task(number: int, tasks: str, state: str = "COMPLETED", **fields: Any) -> Any:
    return job(number, state, array_job_id="2", array_tasks=tasks, **fields)


ARRAY = [task(2, "2"), task(3, "0"), task(6, "1", "FAILED", exit_code="4")]
"""As Slurm numbers them: the last task has the array's number, the others numbers of their own."""
ALL = [*ARRAY, job(5, name="alone")]


@pytest.fixture
def bank(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr("neocloud.cli.commands.slurm.job.POLL_SECONDS", 0.001)
    serve_clusters(cloud, cluster("bank"))
    serve(cloud, ALL)
    output = contract.method(f"{JOBS}/ReadLog").output
    cloud.serve(
        f"{JOBS}/ReadLog",
        lambda request: output(data=f"of {request.job_id}\n".encode(), next_offset=5, is_complete=True),
    )
    return cloud


def serve(cloud: FakeServer, jobs: list[Any]) -> None:
    by_id = {each.id: each for each in jobs}

    def get(request: Any) -> Any:
        if request.job_id not in by_id:
            raise contract.not_found("job", str(request.job_id))
        return by_id[request.job_id]

    cloud.serve(f"{JOBS}/List", contract.method(f"{JOBS}/List").output(items=jobs))
    cloud.serve(f"{JOBS}/Get", get)


def test_tasks_have_slurms_numbers_in_the_list(signed_in: Neo, bank: FakeServer) -> None:
    lines = signed_in("slurm", "job", "list", "bank").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["2_2", "2_0", "2_1", "5"]


def test_what_was_submitted_last_is_not_the_highest_number(signed_in: Neo, bank: FakeServer) -> None:
    """Task 2_1 got number 6 when it started, after job 5 was submitted."""
    ran = signed_in("slurm", "job", "logs", "bank")
    assert (ran.code, ran.out) == (0, "of 5\n") and "Job 5 (alone)" in ran.err
    assert json.loads(signed_in("slurm", "job", "get", "bank", "-o", "json").out)["id"] == "5"


@pytest.mark.parametrize("reference", ["", "2"])
def test_an_array_is_taken_as_a_whole(signed_in: Neo, bank: FakeServer, reference: str) -> None:
    serve(bank, ARRAY)
    named = [reference] if reference else []
    ran = signed_in("slurm", "job", "logs", "bank", *named)
    assert ran.out == "of 3\nof 6\nof 2\n"
    assert [line for line in ran.err.splitlines() if line.startswith("Job 2_")] == [
        "Job 2_0 (arr):",
        "Job 2_1 (arr):",
        "Job 2_2 (arr):",
    ]
    shown = signed_in("slurm", "job", "get", "bank", *named)
    assert "Job 2 (arr) is an array: 2 COMPLETED, 1 FAILED." in shown.err
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        ["2_0", "COMPLETED"],
        ["2_1", "FAILED"],
        ["2_2", "COMPLETED"],
    ]
    document = json.loads(signed_in("slurm", "job", "get", "bank", *named, "-o", "json").out)
    assert [each["id"] for each in document["tasks"]] == ["3", "6", "2"]


def test_a_task_is_named_as_slurm_names_it(signed_in: Neo, bank: FakeServer) -> None:
    assert signed_in("slurm", "job", "logs", "bank", "2_1").out == "of 6\n"
    assert signed_in("slurm", "job", "logs", "bank", "6").out == "of 6\n"
    bank.serve(f"{JOBS}/Cancel", contract.method(f"{JOBS}/Cancel").output())
    assert signed_in("slurm", "job", "cancel", "bank", "2_0").code == 0
    assert bank.asked(f"{JOBS}/Cancel")[0].job_id == 3
    ran = signed_in("slurm", "job", "get", "bank", "2_7")
    assert ran.code == 3 and "Cluster bank has no job 2_7" in ran.err


def test_one_of_tasks_that_wait_together_is_not_cancelled_with_them(signed_in: Neo, bank: FakeServer) -> None:
    serve(bank, [task(2, "3-9%2", "PENDING"), task(3, "0", "RUNNING")])
    ran = signed_in("slurm", "job", "cancel", "bank", "2_5")
    assert ran.code and "2_[3-9%2]" in ran.err and "scancel 2_5" in ran.err
    assert not bank.asked(f"{JOBS}/Cancel")


@pytest.mark.parametrize("text", ["x", "2_", "_1", "2_1_1", "0", "-1", "2.batch", "2_[0-1]"])
def test_what_is_no_number_of_a_job_is_misuse(signed_in: Neo, bank: FakeServer, text: str) -> None:
    ran = signed_in("slurm", "job", "get", "bank", "--", text)
    assert ran.code == 2 and "such as 7" in ran.err


def test_an_array_is_reported_by_task(signed_in: Neo, bank: FakeServer) -> None:
    serve(bank, ARRAY)
    ran = signed_in("slurm", "job", "report", "bank")
    assert ran.code == 2 and "Job 2 is an array of 3 tasks" in ran.err and "2_0, 2_1, 2_2" in ran.err


def test_a_job_that_waits_has_an_expected_start_and_a_reason(signed_in: Neo, bank: FakeServer) -> None:
    waiting = job(
        9, "PENDING", reason="Resources", expected_start_at="2027-11-28T10:00:00Z", name="two", restarts="1"
    )
    waiting.requeues.append("2026-11-28 12:00:00 UTC: its node died (worker-0)")
    serve(bank, [waiting, job(4, "RUNNING", name="n-long", nodes=["worker-0"])])
    out = " ".join(signed_in("slurm", "job", "get", "bank", "9").out.split())
    assert "Expected start 2027-11-28 10:00:00 UTC" in out and "Started 20" not in out
    assert "Reason Resources: waits until enough nodes" in out
    assert "Running now: n-long (job 4) on worker-0" in out
    assert "Restarts 1 Requeued 2026-11-28 12:00:00 UTC: its node died (worker-0)" in out


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"state": "COMPLETED"}, "0"),
        ({"state": "FAILED", "exit_code": "3"}, "3"),
        ({"state": "FAILED", "reason": "BadConstraints"}, "-"),
        ({"state": "CANCELLED"}, "-"),
        ({"state": "FAILED", "exit_signal": "9"}, "signal 9"),
        ({"state": "TIMEOUT"}, "-"),
        ({"state": "RUNNING"}, ""),
        ({"state": "PENDING"}, ""),
    ],
)
def test_only_success_ends_with_0(fields: dict[str, Any], shown: str) -> None:
    assert ending(job(7, **fields)) == shown


def test_a_reason_that_is_a_sentence_stays_one() -> None:
    held = "JobHeldAdmin: its node died 3 times under it (last: worker-0)"
    assert reason_sentence(job(7, "PENDING", reason=held)) == held
    assert reason_sentence(job(7, "PENDING", reason="SomethingNew")) == "SomethingNew"
    assert reason_sentence(job(7, "PENDING")) == ""


@given(st.sets(st.integers(0, 500), min_size=1, max_size=20), st.integers(1, 9))
def test_lists_of_tasks_are_read(numbers: set[int], at_once: int) -> None:
    text = ",".join(str(number) for number in sorted(numbers)) + f"%{at_once}"
    assert {number for number in range(502) if _has_task(text, number)} == numbers
    first, last = min(numbers), max(numbers)
    spanned = {number for number in range(502) if _has_task(f"{first}-{last}:{at_once}", number)}
    assert spanned == set(range(first, last + 1, at_once))


@given(st.text())
def test_no_list_of_tasks_breaks_it(text: str) -> None:
    _has_task(text, 3)
    assert label(task(7, text)).startswith("2_")


def test_follow_prints_the_output_and_fails_with_the_job(
    signed_in: Neo, bank: FakeServer, tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n")
    bank.serve(f"{JOBS}/Submit", contract.method(f"{JOBS}/Submit").output(job_id=5))
    ran = signed_in("slurm", "job", "submit", "bank", str(script), "--follow")
    assert (ran.code, ran.out) == (0, "of 5\n") and "Submitted job 5" in ran.err
    serve(bank, [job(5, "FAILED", exit_code="2")])
    assert signed_in("slurm", "job", "submit", "bank", str(script), "-f").code == 1


def test_waiting_for_an_array_ends_with_its_last_task(
    signed_in: Neo, bank: FakeServer, tmp_path: Path
) -> None:
    script = tmp_path / "arr.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --array=0-2\n")
    bank.serve(f"{JOBS}/Submit", contract.method(f"{JOBS}/Submit").output(job_id=2))
    looks: list[Callable[[], list[Any]]] = [lambda: [*ARRAY[:2], task(6, "1", "RUNNING")], lambda: ARRAY]
    listed = contract.method(f"{JOBS}/List").output
    bank.serve(f"{JOBS}/List", lambda request: listed(items=looks.pop(0)() if looks else ARRAY))
    ran = signed_in("slurm", "job", "submit", "bank", str(script), "--wait")
    assert ran.code == 1 and "ended as FAILED" in ran.err and not looks
