"""Long-running operations: rows that say what was requested, how far it is and how it ended.

They are written in the same transaction as the change that they describe, so an operation is never ahead of
its resource or behind it. They outlive their resource. An operation ends once, and stays as it is.

Progress is stored as the contract's ProgressTracker in JSON. The times of a step are those of the first run
that began it and of the run that saw it done, so the steps read as one sequence although runs repeat them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from neocloud.core import contract
from neocloud.core.contract import ApiError, Code
from neocloud.core.store.protocol import OperationRow, Transaction
from neocloud.messages.nebius.common.v1 import ProgressTracker

ALLOWED = frozenset(
    {
        Code.OK,
        Code.CANCELLED,
        Code.PERMISSION_DENIED,
        Code.RESOURCE_EXHAUSTED,
        Code.FAILED_PRECONDITION,
        Code.ABORTED,
        Code.INTERNAL,
    }
)
"""The codes that the contract allows an operation to end with."""


class StepOutcome(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    OK = "ok"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True)
class ProgressStep:
    """One step of a reconcile run and how far it is."""

    name: str
    outcome: StepOutcome = StepOutcome.PENDING
    message: str = ""

    @property
    def has_begun(self) -> bool:
        return self.outcome is not StepOutcome.PENDING

    @property
    def is_done(self) -> bool:
        return self.outcome is StepOutcome.OK


def report_progress(
    tx: Transaction, resource_id: str, steps: Sequence[ProgressStep], message: str, now: datetime
) -> int:
    """Show these steps on all unfinished operations of the resource; return how many were changed."""
    changed = 0
    for operation in tx.list_operations(resource_id=resource_id, unfinished=True)[0]:
        progress = _merged(operation.progress, steps, message, now)
        if progress != operation.progress:
            tx.update_operation(replace(operation, progress=progress))
            changed += 1
    return changed


def completed(progress: str, now: datetime) -> str:
    """Return the same progress with every step done."""
    if not progress:
        return ""
    tracker = contract.from_json(ProgressTracker, progress)
    for step in tracker.steps:
        _begin_and_end(step, now)
    tracker.description = ""
    tracker.work_done.done_tick_count = tracker.work_done.total_tick_count
    tracker.finished_at.FromDatetime(now)
    return contract.to_json(tracker)


def _merged(progress: str, steps: Sequence[ProgressStep], message: str, now: datetime) -> str:
    old = contract.from_json(ProgressTracker, progress or "{}")
    known = {step.description: step for step in old.steps}
    new = ProgressTracker(description=message)
    new.started_at.FromDatetime(contract.to_datetime(old.started_at) if progress else now)
    for step in steps:
        shown = new.steps.add(description=step.name)
        before = known.get(step.name)
        if before is not None and before.HasField("started_at"):
            shown.started_at.CopyFrom(before.started_at)
        elif step.has_begun:
            shown.started_at.FromDatetime(now)
        if step.is_done and before is not None and before.HasField("finished_at"):
            shown.finished_at.CopyFrom(before.finished_at)
        elif step.is_done:
            shown.finished_at.FromDatetime(now)
    new.work_done.total_tick_count = len(steps)
    new.work_done.done_tick_count = sum(step.is_done for step in steps)
    return contract.to_json(new)


def _begin_and_end(step: Any, now: datetime) -> None:
    if not step.HasField("started_at"):
        step.started_at.FromDatetime(now)
    if not step.HasField("finished_at"):
        step.finished_at.FromDatetime(now)


def finish(operation: OperationRow, now: datetime, error: ApiError | None = None) -> OperationRow:
    """Return the operation as it ends now: with success, or with this error."""
    if operation.code is not None:
        raise ValueError(f"The operation {operation.id} has ended already.")
    if error is None:
        progress = completed(operation.progress, now)
        return replace(operation, finished_at=now, code=int(Code.OK), progress=progress)
    code = error.code if error.code in ALLOWED else Code.INTERNAL
    return replace(
        operation,
        finished_at=now,
        code=int(code),
        message=error.message,
        details=error.status(_service_name(operation)).SerializeToString(),
    )


def finish_for(
    tx: Transaction, resource_id: str, now: datetime, *, observed_version: int, error: ApiError | None = None
) -> int:
    """End the operations that wait for this version: the reconciler has made it true, or cannot.

    A Delete ends here only with a failure; it is done when the row is gone. Return how many have ended.
    """
    waiting = [
        operation
        for operation in _unfinished(tx, resource_id)
        if operation.resource_version <= observed_version and (error is not None or not is_delete(operation))
    ]
    for operation in waiting:
        tx.update_operation(finish(operation, now, error))
    return len(waiting)


def finish_removed(tx: Transaction, resource_id: str, now: datetime) -> int:
    """End the operations of a row that is gone: its Delete is done, all others are aborted."""
    waiting = _unfinished(tx, resource_id)
    for operation in waiting:
        error = None if is_delete(operation) else _aborted(operation, "The resource was deleted.")
        tx.update_operation(finish(operation, now, error))
    return len(waiting)


def abort_unfinished(tx: Transaction, resource_id: str, now: datetime, message: str) -> int:
    """Abort the unfinished operations, which a later change of the resource replaces."""
    waiting = _unfinished(tx, resource_id)
    for operation in waiting:
        tx.update_operation(finish(operation, now, _aborted(operation, message)))
    return len(waiting)


def is_delete(operation: OperationRow) -> bool:
    """Return whether the operation is done when its resource is gone."""
    return operation.method.rpartition("/")[2] in ("Delete", "Purge")


def _unfinished(tx: Transaction, resource_id: str) -> list[OperationRow]:
    return list(tx.list_operations(resource_id=resource_id, unfinished=True)[0])


def _aborted(operation: OperationRow, message: str) -> ApiError:
    return contract.operation_aborted(operation.id, "", operation.resource_id, message)


def _service_name(operation: OperationRow) -> str:
    """ "slurm" of "neocloud.slurm.v1.ClusterService/Create"."""
    parts = operation.method.split(".")
    return parts[1] if len(parts) > 2 else ""
