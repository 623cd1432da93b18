"""Resources that a job got and used: the runs of a job and their steps, in slurmdbd's record of it.

Fields are those of slurmrestd v0.0.42, checked on Slurm 24.11: `requested` of a step is what it took in and
held (`sacct`'s TRESUsageIn), `consumed` what it put out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from neocloud.services.slurm.slurm_records import Json, moment_of, number_of, part_of, rows_of

MOST_STEPS = 200
MOST_REQUEUES = 10
MIB = 1024**2
_SPAN = "[0-9]{1,12}(?:-[0-9]{1,12})?"
_NODES = re.compile(rf"([A-Za-z0-9._-]{{1,64}}?)(?:\[({_SPAN}(?:,{_SPAN})*)\])?(?:,|\Z)")


@dataclass(frozen=True)
class StepUse:
    name: str
    started_at: datetime | None
    finished_at: datetime | None
    cpus: int
    cpu_seconds: float
    peak_task_memory_bytes: int
    peak_task_node: str
    peak_memory_bytes: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class JobRun:
    state: str
    nodes: str
    started_at: datetime | None
    finished_at: datetime | None
    cpus: int
    memory_bytes: int
    gpus: int
    steps: Sequence[StepUse]
    more_steps: int = 0
    """Steps that are not listed."""


def runs_of(rows: Iterable[Json]) -> list[JobRun]:
    """Return the runs of a job, oldest first; those that got no nodes are left out."""
    found = [_run(row) for row in rows]
    return sorted((run for run in found if run.started_at), key=lambda run: run.started_at or _NEVER)


_ENDINGS = {
    "NODE_FAIL": "its node died ({nodes})",
    "PREEMPTED": "a job of higher priority took its nodes ({nodes})",
    "REQUEUED": "it was requeued by a command, on {nodes}",
    "BOOT_FAIL": "its node did not start ({nodes})",
}


def requeues(runs: Iterable[JobRun], restarts: int) -> list[str]:
    """Return what ended each run of a job but the last, oldest first, as far as accounting has it."""
    ended = [run for run in runs if run.finished_at]
    return [
        f"{run.finished_at:%Y-%m-%d %H:%M:%S} UTC: "
        + _ENDINGS.get(run.state, f"its run ended {run.state} ({{nodes}})").format(nodes=run.nodes)
        for run in ended[:restarts][-MOST_REQUEUES:]
    ]


_NEVER = datetime.max.replace(tzinfo=UTC)


def _run(row: Json) -> JobRun:
    times, tres, steps = part_of(row, "time"), part_of(row, "tres"), rows_of(row, "steps")
    states: list[str] = [str(each) for each in part_of(row, "state").get("current") or ["UNKNOWN"]]
    return JobRun(
        state=states[-1],
        nodes=str(row.get("nodes") or ""),
        started_at=moment_of(times.get("start")),
        finished_at=moment_of(times.get("end")),
        cpus=_count(tres, "allocated", "cpu"),
        memory_bytes=_count(tres, "allocated", "mem") * MIB,
        gpus=_count(tres, "allocated", "gres", "gpu"),
        steps=[_step(step) for step in steps[:MOST_STEPS]],
        more_steps=max(0, len(steps) - MOST_STEPS),
    )


def _step(row: Json) -> StepUse:
    times, tres = part_of(row, "time"), part_of(row, "tres")
    used, held, put = part_of(times, "total"), part_of(tres, "requested"), part_of(tres, "consumed")
    return StepUse(
        name=str(part_of(row, "step").get("name") or ""),
        started_at=moment_of(times.get("start")),
        finished_at=moment_of(times.get("end")),
        cpus=_count(tres, "allocated", "cpu"),
        cpu_seconds=number_of(used.get("seconds")) + number_of(used.get("microseconds")) / 1e6,
        peak_task_memory_bytes=_count(held, "max", "mem"),
        peak_task_node=next((str(each.get("node") or "") for each in _of_type(held, "max", "mem", "")), ""),
        peak_memory_bytes=_count(held, "total", "mem"),
        read_bytes=_count(held, "total", "fs", "disk"),
        written_bytes=_count(put, "total", "fs", "disk"),
    )


def node_names(text: str, most: int) -> list[str]:
    """Return the first names of Slurm's list of nodes, such as "worker-[0-2,7]". Raises ValueError."""
    found: list[str] = []
    position = 0
    while position < len(text) and len(found) < most:
        part = _NODES.match(text, position)
        if part is None:
            raise ValueError(f"{text[:100]!r} is not a list of nodes")
        position, (prefix, numbers) = part.end(), part.groups()
        for span in numbers.split(",") if numbers else ():
            first, _, last = span.partition("-")
            end = min(int(last or first), int(first) + most)
            found += [f"{prefix}{number:0{len(first)}}" for number in range(int(first), end + 1)]
            if len(found) >= most:
                break
        if numbers is None:
            found.append(prefix)
    return found[:most]


def _count(parent: Json, field: str, kind: str, name: str = "") -> int:
    return next((number_of(row.get("count")) for row in _of_type(parent, field, kind, name)), 0)


def _of_type(parent: Json, field: str, kind: str, name: str) -> Iterable[Json]:
    rows = rows_of(parent, field)
    return (row for row in rows if row.get("type") == kind and (row.get("name") or "") == name)
