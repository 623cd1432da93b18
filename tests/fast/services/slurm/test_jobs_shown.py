"""Jobs in the API: arrays, expected starts, why they were held, requeued or refused."""

from datetime import UTC, datetime
from typing import Any

import pytest
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

from neocloud.services.iam.rules.roles import allows
from neocloud.services.slurm.accounting import MOST_REQUEUES, requeues, runs_of
from neocloud.services.slurm.api import METHODS, READ_LOG, _message
from neocloud.services.slurm.refused_jobs import explained
from neocloud.services.slurm.slurm_records import finished_job_of, job_of

START = 1_790_000_000
ROW: dict[str, Any] = {"job_id": 7, "name": "arr", "user_name": "lou", "job_state": ["PENDING"]}
REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


def number(value: int, *, is_set: bool = True) -> dict[str, Any]:
    return {"set": is_set, "infinite": False, "number": value}


def test_a_guess_is_no_start() -> None:
    waiting = _message(job_of({**ROW, "start_time": number(START)}))
    assert not waiting.HasField("started_at") and waiting.expected_start_at.seconds == START
    running = _message(job_of({**ROW, "job_state": ["RUNNING"], "start_time": number(START)}))
    assert running.started_at.seconds == START and not running.HasField("expected_start_at")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"array_job_id": number(2), "array_task_id": number(0)}, (2, "0")),
        (
            {
                "array_job_id": number(2),
                "array_task_id": number(0, is_set=False),
                "array_task_string": "3-9%2",
            },
            (2, "3-9%2"),
        ),
        (
            {"array_job_id": number(0), "array_task_id": number(0, is_set=False), "array_task_string": ""},
            (0, ""),
        ),
        ({}, (0, "")),
    ],
)
def test_tasks_of_arrays_are_known(fields: dict[str, Any], shown: tuple[int, str]) -> None:
    message = _message(job_of({**ROW, **fields}))
    assert (message.array_job_id, message.array_tasks) == shown
    if "array_task_string" not in fields or not fields["array_task_string"]:
        array = {"job_id": shown[0], "task_id": number(0, is_set=bool(shown[0])), "task": ""}
        finished = _message(finished_job_of({"job_id": 7, "user": "lou", "array": array}))
        assert (finished.array_job_id, finished.array_tasks) == shown


def test_the_signal_that_ended_a_job_is_told() -> None:
    code = {"return_code": number(0), "signal": {"id": number(9), "name": "KILL"}}
    assert _message(job_of({**ROW, "job_state": ["FAILED"], "exit_code": code})).exit_signal == 9


def test_the_reason_of_a_held_job_is_the_clouds_if_the_cloud_held_it() -> None:
    text = "neocloud: held: its node died 3 times under it (last: worker-0); once the cause is gone: x"
    held = {**ROW, "state_reason": "JobHeldAdmin", "admin_comment": text}
    assert _message(job_of(held)).reason.startswith("JobHeldAdmin: its node died 3 times under it")
    assert _message(job_of({**held, "admin_comment": "", "comment": text})).reason == "JobHeldAdmin"
    assert _message(job_of({**held, "state_reason": "Resources"})).reason == "Resources"
    assert _message(job_of({**held, "state_reason": "None"})).reason == ""


def test_each_requeue_is_told_with_its_cause() -> None:
    rows = [
        {
            "state": {"current": [state]},
            "nodes": nodes,
            "time": {"start": START + at, "end": at and START + at + 5},
        }
        for at, (state, nodes) in enumerate(
            [
                ("NODE_FAIL", "worker-0"),
                ("NODE_FAIL", "worker-0"),
                ("PREEMPTED", "worker-1"),
                ("RUNNING", "worker-1"),
            ],
            start=1,
        )
    ]
    rows[-1]["time"]["end"] = 0
    told = requeues(runs_of(rows), 3)
    moment = f"{datetime.fromtimestamp(START + 6, UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert told[0] == f"{moment}: its node died (worker-0)"
    assert told[2].endswith("a job of higher priority took its nodes (worker-1)") and len(told) == 3
    assert len(requeues(runs_of(rows * 20), 60)) == MOST_REQUEUES and not requeues([], 3)


@pytest.mark.parametrize(
    "line", ["--nodes=2", "-N 2", "-N2", "--nodes 2", "--exclusive --nodes=2", "--nodes=2-4", "-N 2 --time=5"]
)
def test_more_nodes_than_there_are_say_what_to_do(line: str) -> None:
    spec = ClusterSpec()
    spec.node_sets.add(name="worker", preset="2vcpu-4gb", count=1)
    text = explained(REFUSED, f"#!/bin/bash\n#SBATCH {line}\nsrun hostname\n", "n-lab", spec)
    assert text.startswith("asks for 2 nodes; n-lab has 1: neo slurm cluster scale n-lab --workers 2.")
    assert REFUSED in text


def test_what_no_node_has_is_said_with_what_there_is() -> None:
    spec = ClusterSpec()
    script = "#!/bin/bash\n#SBATCH --mem=900G\n# --nodes=7\necho '#SBATCH --nodes=9'\n"
    assert "has no node" in explained(REFUSED, script, "lab", spec)
    spec.node_sets.add(name="worker", preset="2vcpu-4gb", count=3)
    text = explained(REFUSED, script, "lab", spec)
    assert "lab has 3 nodes (3 of 2vcpu-4gb)" in text and "scale" not in text
    assert explained("sbatch: error: Invalid qos", script, "lab", spec) == "sbatch: error: Invalid qos"


def test_who_sees_no_secrets_does_not_read_the_output_of_jobs() -> None:
    (method,) = [each for each in METHODS if each.path.endswith("JobService/ReadLog")]
    assert method.permission == READ_LOG == "slurm.jobs.readLog"
    for role in ("viewer", "auditor", "slurm.viewer", "inference.editor", "tuning.editor"):
        assert not allows(role, READ_LOG), role
        assert allows(role, "slurm.jobs.get") or role == "slurm.viewer"
    for role in ("admin", "editor", "slurm.editor", "slurm.jobs.submitter"):
        assert allows(role, READ_LOG), role
