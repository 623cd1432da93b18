"""Runs and steps of a job, as slurmrestd has them (rows shortened from a real Slurm 24.11)."""

from datetime import UTC, datetime
from typing import Any

from neocloud.services.slurm.accounting import MIB, MOST_STEPS, runs_of


def tres(kind: str, count: int, name: str = "", **more: object) -> dict[str, Any]:
    return {"type": kind, "name": name, "count": count, **more}


def step(name: str = "python3") -> dict[str, Any]:
    return {
        "step": {"id": "6.0", "name": name},
        "time": {
            "start": {"set": True, "infinite": False, "number": 100},
            "end": {"set": True, "infinite": False, "number": 112},
            "total": {"seconds": 22, "microseconds": 500_000},
        },
        "tres": {
            "allocated": [tres("cpu", 2)],
            "requested": {
                "max": [tres("mem", 200 * MIB, node="worker-1"), tres("fs", 1, "disk")],
                "total": [tres("mem", 390 * MIB), tres("vmem", 999), tres("fs", 81302, "disk")],
            },
            "consumed": {"total": [tres("energy", 0), tres("fs", 8, "disk")]},
        },
    }


def row(**changes: object) -> dict[str, Any]:
    return {
        "job_id": 6,
        "nodes": "worker-[0-1]",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"start": 100, "end": 115},
        "tres": {"allocated": [tres("cpu", 2), tres("mem", 1000), tres("gres", 3, "gpu")]},
        "steps": [step()],
        **changes,
    }


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_run_has_what_it_got_and_its_steps_what_they_used() -> None:
    (run,) = runs_of([row()])
    assert (run.state, run.nodes, run.started_at, run.finished_at) == (
        "COMPLETED",
        "worker-[0-1]",
        at(100),
        at(115),
    )
    assert (run.cpus, run.memory_bytes, run.gpus, run.more_steps) == (2, 1000 * MIB, 3, 0)
    (used,) = run.steps
    assert (used.name, used.cpus, used.cpu_seconds) == ("python3", 2, 22.5)
    assert (used.peak_task_memory_bytes, used.peak_task_node) == (200 * MIB, "worker-1")
    assert (used.peak_memory_bytes, used.read_bytes, used.written_bytes) == (390 * MIB, 81302, 8)


def test_runs_are_in_order_and_say_why_they_were_cut_short() -> None:
    cut = row(state={"current": ["PENDING", "REQUEUED"]}, time={"start": 50, "end": 55})
    waiting = row(state={"current": ["PENDING"]}, time={"start": 0, "end": 0}, steps=[])
    runs = runs_of([waiting, row(), cut])
    assert [(run.state, run.started_at) for run in runs] == [("REQUEUED", at(50)), ("COMPLETED", at(100))]


def test_a_run_that_goes_on_has_no_end_and_many_steps_are_counted() -> None:
    (run,) = runs_of(
        [row(time={"start": 100, "end": 0}, steps=[step(str(n)) for n in range(MOST_STEPS + 5)])]
    )
    assert run.finished_at is None
    assert (len(run.steps), run.more_steps) == (MOST_STEPS, 5)


def test_fields_that_a_version_leaves_out_are_empty() -> None:
    (run,) = runs_of([{"time": {"start": 100}, "steps": [{}], "tres": None, "state": None}])
    assert (run.state, run.cpus, run.nodes) == ("UNKNOWN", 0, "")
    assert (run.steps[0].name, run.steps[0].cpu_seconds, run.steps[0].peak_task_node) == ("", 0.0, "")
