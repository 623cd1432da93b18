"""One pass over one resource: look, run the steps in order, say what the status is.

A pass reads the world anew and trusts nothing an earlier pass believed. It never sleeps and never writes the
status itself; it ends in a `Verdict` that the worker writes in one transaction. This is the border where an
unexpected error of a brick or an engine is caught: it becomes a waiting with back-off.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.operations import ProgressStep
from neocloud.core.reconcile.context import RunContext
from neocloud.core.reconcile.reconciler import (
    Failed,
    Outcome,
    Reconciler,
    RetryLater,
    Settled,
    Step,
    StepResult,
)
from neocloud.core.store.protocol import LeaseLost

log = logging.getLogger(__name__)

FIRST_BACK_OFF_SECONDS = 0.2
LONGEST_BACK_OFF_SECONDS = 30.0
LOOK = "Look at the world"
DELETE_OWNED = "Delete what belongs to it"
CONCLUDE = "Compute the status"


@dataclass(frozen=True)
class Verdict:
    """What a pass found. `delay_seconds` None means: look again only when woken."""

    outcome: Outcome
    settled: Settled | None = None
    delay_seconds: float | None = None
    had_error: bool = False


class Pass:
    """The pass in progress; `progress` may be read while it runs."""

    def __init__(self, reconciler: Reconciler, context: RunContext, attempts: int) -> None:
        self._reconciler = reconciler
        self._context = context
        self._attempts = attempts
        self._resource = context.resource
        self._is_deleting = context.resource.deleted_at is not None
        self._results: list[StepResult] = []
        self._pending: list[str] = [LOOK]
        self._delay_seconds: float | None = None
        self._waiting = ""
        self._failed: Failed | None = None
        self._had_error = False

    @property
    def progress(self) -> tuple[ProgressStep, ...]:
        done = [ProgressStep(result.name, True, result.outcome == "ok") for result in self._results]
        is_running = not (self._waiting or self._failed)
        rest = [
            ProgressStep(name, has_begun=is_running and index == 0)
            for index, name in enumerate(self._pending)
        ]
        return tuple(step for step in (*done, *rest) if step.name != LOOK)

    async def run(self) -> Verdict:
        scope = None

        async def look(_: object) -> None:
            nonlocal scope
            scope = await self._reconciler.scope(self._context)

        if not await self._run_all([Step(LOOK, look)], None):
            return self._verdict(None)
        steps = self._reconciler.delete_steps if self._is_deleting else self._reconciler.steps
        self._results.clear()
        planned = list(steps(scope))
        if self._is_deleting:
            planned.append(Step(DELETE_OWNED, self._delete_owned))
        is_done = await self._run_all(planned, scope)
        if is_done and self._is_deleting:
            return self._verdict(None)
        return await self._conclude(scope)

    async def _run_all(self, steps: Sequence[Step], scope: object) -> bool:
        """Run the steps until one does not succeed; True when all did."""
        self._pending = [step.name for step in steps]
        for step in steps:
            result = await self._run_step(step, scope)
            self._pending.pop(0)
            self._results.append(result)
            if result.outcome != "ok":
                return False
        return True

    async def _run_step(self, step: Step, scope: object) -> StepResult:
        try:
            await step.run(scope)
        except RetryLater as later:
            log.debug("%s: %s: %s", self._resource.id, step.name, later)
            self._waiting = f"{step.name}: {later}"
            self._delay_seconds = later.delay_seconds
            return StepResult(step.name, "waiting", str(later))
        except Failed as failed:
            log.warning("%s: %s: %s: %s", self._resource.id, step.name, failed.reason, failed)
            self._failed = failed
            return StepResult(step.name, "failed", str(failed))
        except LeaseLost:
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            leaked = RuntimeError(f"a call of the step was cancelled from inside ({error!r})")
            return StepResult(step.name, "failed", self._note_error(step.name, leaked))
        except Exception as error:  # noqa: BLE001 - the worker's border: one resource must not stop the others
            return StepResult(step.name, "failed", self._note_error(step.name, error))
        return StepResult(step.name, "ok")

    def _note_error(self, step_name: str, error: Exception) -> str:
        """Log it and plan the next try; answers with the text that users may see."""
        self._had_error = True
        self._delay_seconds = back_off_seconds(self._attempts)
        text = str(error) or type(error).__name__
        self._waiting = f"{step_name}: {text}; trying again in {self._delay_seconds:g} s"
        log.warning(
            "%s: %s: %s; try %d, again in %g s",
            self._resource.id,
            step_name,
            text,
            self._attempts + 1,
            self._delay_seconds,
            exc_info=error if self._attempts == 0 else None,
        )
        return text

    async def _delete_owned(self, _: object) -> None:
        if not await self._context.delete_owned():
            raise RetryLater("some are still being deleted")

    async def _conclude(self, scope: object) -> Verdict:
        settled = None

        async def conclude(_: object) -> None:
            nonlocal settled
            settled = self._reconciler.status(scope, self._outcome())

        result = await self._run_step(Step(CONCLUDE, conclude), scope)
        if result.outcome != "ok":
            self._results.append(result)
        return self._verdict(settled)

    def _outcome(self) -> Outcome:
        pending = [StepResult(name, "pending") for name in self._pending]
        return Outcome(
            steps=(*self._results, *pending),
            waiting=self._waiting,
            failed=self._failed,
            observed_version=self._resource.resource_version,
        )

    def _verdict(self, settled: Settled | None) -> Verdict:
        delay = self._delay_seconds
        if delay is None and settled is not None:
            delay = settled.resync_seconds
        return Verdict(self._outcome(), settled, delay, self._had_error)


def _is_cancelled() -> bool:
    """Whether this task was asked to stop. A cancellation that leaks out of a library is an error instead."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def back_off_seconds(attempts: int) -> float:
    """0.2 s, doubling with each error in a row, at most 30 s."""
    return min(LONGEST_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2 ** min(attempts, 16))
