"""Nodes, jobs and reservations as Slurm's REST service answers them.

Its types differ between versions, so each field is converted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from neocloud.core.json_values import as_list, as_object, is_object
from neocloud.services.slurm.public import Reservation
from neocloud.services.slurm.types import UNKNOWN_USER_ID

Json = Mapping[str, Any]
"""An object of slurmrestd's JSON."""

HELD_PREFIX = "neocloud: held: "
"""The admin comment of a job that the cloud has held starts with it; the reason follows."""
_ACTIVE_STATES = frozenset(
    {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT"}
)
"""States of jobs that have not ended."""


@dataclass(frozen=True)
class PowerState:
    """The state of a node in Slurm's power saving."""

    is_off: bool
    """It is powered down, or being powered down; nothing runs there."""
    is_starting: bool
    """It was powered up, and Slurm waits for it."""

    @classmethod
    def of(cls, states: Iterable[str]) -> "PowerState":
        """Return it for Slurm's names of a node's states."""
        known = frozenset(states)
        is_starting = bool(known & {"POWERING_UP", "POWER_UP"})
        return cls(bool(known & {"POWERED_DOWN", "POWERING_DOWN"}) and not is_starting, is_starting)


@dataclass(frozen=True)
class SlurmNode:
    name: str
    states: frozenset[str]
    """Slurm's names: IDLE, ALLOCATED, DOWN, DRAIN, NOT_RESPONDING, ..."""
    reason: str
    address: str
    slurmd_started_at: datetime
    allocated_cpus: int

    @property
    def is_available(self) -> bool:
        """Return whether it is registered and able to run jobs."""
        bad = {"DOWN", "NOT_RESPONDING", "INVALID_REG", "UNKNOWN", "FAIL"}
        return not (self.states & bad or self.is_off)

    @property
    def is_off(self) -> bool:
        """Return whether Slurm powered it down, or has it started: there is nothing to look at."""
        power = PowerState.of(self.states)
        return power.is_off or power.is_starting

    @property
    def takes_jobs(self) -> bool:
        return self.is_available and "DRAIN" not in self.states

    @property
    def is_busy(self) -> bool:
        """Return whether a job holds CPUs here or is being cleaned up."""
        return self.allocated_cpus > 0 or "COMPLETING" in self.states

    @property
    def state_text(self) -> str:
        return "+".join(sorted(self.states))


@dataclass(frozen=True)
class SlurmJob:
    id: int
    name: str
    user: str
    state: str
    reason: str
    nodes: tuple[str, ...]
    submitted_at: datetime | None
    eligible_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int
    output_path: str
    restarts: int
    partition: str
    is_configuring: bool = False
    """It has its nodes, and waits for those that are being powered up."""
    user_id: int = UNKNOWN_USER_ID
    """Unknown of a job in the accounting database, which has the name alone."""
    comment: str = ""
    admin_comment: str = ""
    """Only administrators of Slurm can write it."""
    array_job_id: int = 0
    """The number of the array that it is a task of; 0 for other jobs."""
    array_tasks: str = ""
    """The number of its task; of tasks that wait together, a list such as "3-9%2"."""
    exit_signal: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state not in _ACTIVE_STATES

    @property
    def is_held(self) -> bool:
        return self.reason.startswith("JobHeld")

    @property
    def reason_text(self) -> str:
        """Why it waits or failed: Slurm's word, or the sentence with which the cloud has held it."""
        if self.is_held and self.admin_comment.startswith(HELD_PREFIX):
            return f"{self.reason}: {self.admin_comment.removeprefix(HELD_PREFIX)}"
        return "" if self.reason == "None" else self.reason


def node_of(row: Json) -> SlurmNode:
    return SlurmNode(
        name=row["name"],
        states=frozenset(row.get("state") or ()),
        reason=row.get("reason") or "",
        address=row.get("address") or "",
        slurmd_started_at=datetime.fromtimestamp(number_of(row.get("slurmd_start_time")), UTC),
        allocated_cpus=int(row.get("alloc_cpus") or 0),
    )


def reservation_of(row: Json) -> Reservation:
    never = datetime.fromtimestamp(0, UTC)
    start, end = moment_of(row.get("start_time")) or never, moment_of(row.get("end_time")) or never
    return Reservation(row.get("name") or "", (row.get("node_list") or "",), start, end)


def job_of(row: Json) -> SlurmJob:
    return SlurmJob(
        id=row["job_id"],
        name=row.get("name") or "",
        user=row.get("user_name") or "",
        state=(row.get("job_state") or ["UNKNOWN"])[0],
        reason=row.get("state_reason") or "",
        nodes=_node_names(part_of(part_of(row, "job_resources"), "nodes")),
        submitted_at=moment_of(row.get("submit_time")),
        eligible_at=moment_of(row.get("eligible_time")),
        started_at=moment_of(row.get("start_time")),
        finished_at=moment_of(row.get("end_time")),
        exit_code=number_of(part_of(row, "exit_code").get("return_code")),
        output_path=_expanded_path(row),
        restarts=int(row.get("restart_cnt") or 0),
        partition=row.get("partition") or "",
        is_configuring="CONFIGURING" in (row.get("job_state") or ()),
        user_id=_user_id(row.get("user_id")),
        comment=row.get("comment") or "",
        admin_comment=row.get("admin_comment") or "",
        array_job_id=number_of(row.get("array_job_id")),
        array_tasks=_tasks(row.get("array_task_id"), row.get("array_task_string")),
        exit_signal=_signal(row),
    )


def finished_job_of(row: Json) -> SlurmJob:
    times, state, array = part_of(row, "time"), part_of(row, "state"), part_of(row, "array")
    return SlurmJob(
        id=row["job_id"],
        name=row.get("name") or "",
        user=row.get("user") or "",
        state=(state.get("current") or ["UNKNOWN"])[0],
        reason=state.get("reason") or "",
        nodes=tuple(filter(None, [row.get("nodes")])),
        submitted_at=moment_of(times.get("submission")),
        eligible_at=moment_of(times.get("eligible")),
        started_at=moment_of(times.get("start")),
        finished_at=moment_of(times.get("end")),
        exit_code=number_of(part_of(row, "exit_code").get("return_code")),
        output_path=row.get("stdout_expanded") or row.get("stdout") or "",
        restarts=int(row.get("restart_cnt") or 0),
        partition=row.get("partition") or "",
        array_job_id=number_of(array.get("job_id")),
        array_tasks=_tasks(array.get("task_id"), array.get("task")),
        exit_signal=_signal(row),
    )


def _tasks(number: object, several: object) -> str:
    """Return the number of a task, which may be 0, else Slurm's list of tasks."""
    if is_object(number) and number.get("set"):
        return str(number_of(number))
    return str(several or "")


def _signal(row: Json) -> int:
    return number_of(part_of(part_of(row, "exit_code"), "signal").get("id"))


def _expanded_path(row: Json) -> str:
    return row.get("stdout_expanded") or row.get("standard_output") or ""


def _user_id(value: Json | int | None) -> int:
    """Return the number of a user; unknown for anything but a number, since 0 is root's."""
    if isinstance(value, Mapping):
        value = value["number"] if value.get("set") is True else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return UNKNOWN_USER_ID
    return value


def _node_names(nodes: Json) -> tuple[str, ...]:
    return tuple(row["name"] for row in rows_of(nodes, "allocation") if "name" in row)


def part_of(row: Json, name: str) -> Json:
    """Return the object in this field; an empty one where there is none."""
    return as_object(row.get(name))


def rows_of(row: Json, name: str) -> list[Json]:
    """Return the objects in this list; none where there is no list."""
    return [each for each in as_list(row.get(name)) if is_object(each)]


def number_of(value: Json | float | str | None) -> int:
    """Slurm writes optional numbers as {"set": bool, "infinite": bool, "number": n}."""
    if isinstance(value, Mapping):
        return int(value.get("number") or 0) if value.get("set") else 0
    return int(value or 0)


def moment_of(value: Json | float | str | None) -> datetime | None:
    seconds = number_of(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
