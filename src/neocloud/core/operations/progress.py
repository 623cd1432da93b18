# pyright: strict
"""How far an operation is, step by step, for people who wait.

Kept as the contract's ProgressTracker in JSON. A step's times are those of the first run that began it and of
the run that saw it done, so that the whole reads as one sequence although runs repeat every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from neocloud.core import contract
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import ProgressTracker


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
