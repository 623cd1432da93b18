"""One reconcile run over one resource: run the steps under a lease, then commit the result.

A run reads the current state and trusts nothing that an earlier run believed. An unexpected error of a
service or an engine is caught here and becomes a wait with back-off. Whatever happens, the result is
committed, or the lease is released, or it expires.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from neocloud.core import contract, operations
from neocloud.core.contract import ApiError
from neocloud.core.kind import FINALIZER, Kinds, delete_row, enqueue_dependents
from neocloud.core.logs import bind
from neocloud.core.operations import ProgressStep, StepOutcome
from neocloud.core.reconcile.context import RunContext, WorkerContext
from neocloud.core.reconcile.reconciler import (
    AnyReconciler,
    AnyStep,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.store.protocol import Lease, LeaseLost, Resource, StoreError, Transaction

logger = logging.getLogger(__name__)

FIRST_BACK_OFF_SECONDS = 0.2
LONGEST_BACK_OFF_SECONDS = 30.0
READ_STATE = "Read current state"
DELETE_OWNED = "Delete owned resources"
UPDATE_STATUS = "Update status"

_HEARTBEAT_SECONDS = 1.0


class ReconcileRun:
    """One run while its lease is held: renewed as long as it lasts, its progress shown, its result
    committed."""

    def __init__(
        self,
        worker: WorkerContext,
        reconciler: AnyReconciler,
        resource: Resource,
        lease: Lease,
        request_id: str = "",
    ) -> None:
        """`request_id` names the request that waits for the resource, if there is one."""
        self._worker = worker
        self._resource = resource
        self._lease = lease
        self._request_id = request_id
        self._began_at = self._renewed_at = worker.clock.monotonic()
        self._steps = _StepRunner(reconciler, RunContext(worker, resource, lease), lease.attempts)

    async def run(self) -> None:
        """Run and commit. Every record that is logged in it, also by the engine, carries the run's fields."""
        resource, attempt = self._resource, self._lease.attempts + 1
        request = {"request_id": self._request_id} if self._request_id else {}
        with bind(resource=resource.id, kind=resource.kind, attempt=attempt, **request):
            await self._run()

    async def _run(self) -> None:
        try:
            result = await self._run_leased()
            is_deleted = await self._commit(result)
            self._log_result(result, is_deleted)
            self._count(_outcome_of(result))
        except LeaseLost as lost:
            self._count("lost")
            logger.info("%s: the result is dropped: %s", self._resource.id, lost)
        except StoreError as error:
            self._count("lost")
            logger.error("%s: the result cannot be written: %s", self._resource.id, error)
        except asyncio.CancelledError:
            await self._release()
            raise

    def _count(self, result: str) -> None:
        seconds = self._worker.clock.monotonic() - self._began_at
        self._worker.on_result(self._resource.kind, result, seconds)

    async def _run_leased(self) -> ReconcileResult:
        running = asyncio.ensure_future(self._steps.run())
        beating = asyncio.ensure_future(self._beat())
        try:
            await asyncio.wait({running, beating}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done() and not running.done():
                beating.result()  # raises LeaseLost
            return running.result()
        finally:
            await _cancel(running, beating)

    async def _beat(self) -> None:
        """Renew the lease and show progress while the run lasts. Ends only by LeaseLost."""
        shown: tuple[ProgressStep, ...] | None = None
        lease_seconds, clock = self._worker.lease_seconds, self._worker.clock
        while True:
            await clock.sleep(min(_HEARTBEAT_SECONDS, lease_seconds / 3))
            must_renew = clock.monotonic() - self._renewed_at >= lease_seconds / 3
            if must_renew or self._steps.progress != shown:
                shown = self._steps.progress
                await self._renew(shown)

    async def _renew(self, progress: tuple[ProgressStep, ...]) -> None:
        def renew(tx: Transaction) -> Lease:
            now = self._worker.clock.now()
            operations.report_progress(tx, self._resource.id, progress, "", now)
            return tx.renew(self._lease, now + timedelta(seconds=self._worker.lease_seconds))

        try:
            self._lease = await self._worker.store.write(renew)
            self._renewed_at = self._worker.clock.monotonic()
        except LeaseLost:
            raise
        except StoreError as error:
            logger.error("%s: the lease cannot be renewed: %s", self._resource.id, error)

    async def _commit(self, result: ReconcileResult) -> bool:
        """Write the result; True when the resource is gone."""
        worker = self._worker
        return await worker.store.write(
            lambda tx: commit_result(
                tx, worker.kinds, self._resource, self._lease, result, worker.clock.now()
            )
        )

    async def _release(self) -> None:
        """Release the lease and leave the resource as it is, due immediately."""

        def release(tx: Transaction) -> None:
            now = self._worker.clock.now()
            tx.commit_result(
                self._lease,
                status=None,
                state=None,
                observed_version=None,
                finalizers=None,
                due_at=now,
                attempts=self._lease.attempts,
                now=now,
            )

        with suppress(StoreError):
            await self._worker.store.write(release)

    def _log_result(self, result: ReconcileResult, is_deleted: bool) -> None:
        """Log one line; at DEBUG when nothing has changed since the last run, so that an idle cloud logs
        none."""
        resource, reasons, reason = self._resource, self._worker.reasons, result.message
        state = "DELETED" if is_deleted else result.state or resource.state
        has_changed = (state, reason) != (resource.state, reasons.pop(resource.id, ""))
        if reason:
            reasons[resource.id] = reason
        level = logging.DEBUG
        if has_changed or result.is_unexpected:
            is_failure = result.error is not None or result.is_unexpected
            level = logging.WARNING if is_failure else logging.INFO
        why = f": {result.error.reason}: {reason}" if result.error else f": {reason}" if reason else ""
        duration_ms = round((self._worker.clock.monotonic() - self._began_at) * 1000)
        logger.log(
            level,
            "%s: %s after %d ms%s",
            resource.id,
            state,
            duration_ms,
            why,
            exc_info=self._steps.unexpected if not self._lease.attempts else None,
            extra={"duration_ms": duration_ms, "result": _outcome_of(result)},
        )


def _outcome_of(result: ReconcileResult) -> str:
    if result.error is not None:
        return "failed"
    if result.is_unexpected:
        return "error"
    return "waiting" if result.waiting else "done"


class _StepRunner:
    """Runs the steps of one reconciler in order; `progress` may be read while it runs."""

    def __init__(self, reconciler: AnyReconciler, context: RunContext, attempts: int) -> None:
        self._reconciler = reconciler
        self._context = context
        self._attempts = attempts
        self._is_deleting = context.resource.deleted_at is not None
        self._finished: list[ProgressStep] = []
        self._pending: list[str] = []
        self._result = ReconcileResult()
        self.unexpected: BaseException | None = None

    @property
    def progress(self) -> tuple[ProgressStep, ...]:
        rest = [ProgressStep(name) for name in self._pending]
        if rest and self._result.is_done:
            rest[0] = replace(rest[0], outcome=StepOutcome.RUNNING)
        return (*self._finished, *rest)

    async def run(self) -> ReconcileResult:
        scope = None

        async def read_state(_: object) -> None:
            nonlocal scope
            scope = await self._reconciler.scope(self._context)

        if not (await self._run_step(Step(READ_STATE, read_state), None)).is_done:
            return self._result
        if self._is_deleting:
            steps = [*self._reconciler.delete_steps(scope), Step(DELETE_OWNED, self._delete_owned)]
        else:
            steps = list(self._reconciler.steps(scope))
        await self._run_all(steps, scope)
        if self._is_deleting and self._result.is_done:
            return self._with_progress()
        return await self._with_status(scope)

    async def _run_all(self, steps: Sequence[AnyStep], scope: object) -> None:
        """Run the steps until one does not succeed."""
        self._pending = [step.name for step in steps]
        for step in steps:
            done = await self._run_step(step, scope)
            self._pending.pop(0)
            self._finished.append(done)
            if not done.is_done:
                return

    async def _run_step(self, step: AnyStep, scope: object) -> ProgressStep:
        try:
            await step.run(scope)
        except RetryLater as later:
            waiting, delay = f"{step.name}: {later}", later.delay_seconds
            self._result = replace(self._result, waiting=waiting, requeue_after=delay)
            return ProgressStep(step.name, StepOutcome.WAITING, str(later))
        except Failed as failed:
            self._result = replace(self._result, error=failed)
            return ProgressStep(step.name, StepOutcome.FAILED, str(failed))
        except LeaseLost:
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            leaked = RuntimeError(f"a call of the step was cancelled from inside ({error!r})")
            return self._unexpected(step, leaked)
        except Exception as error:  # noqa: BLE001 - one resource must not stop the others
            return self._unexpected(step, error)
        return ProgressStep(step.name, StepOutcome.OK)

    def _unexpected(self, step: AnyStep, error: Exception) -> ProgressStep:
        self.unexpected = error
        text = str(error) or type(error).__name__
        delay = back_off_seconds(self._attempts)
        self._result = replace(
            self._result,
            waiting=f"{step.name}: {text}; trying again in {delay:g} s",
            requeue_after=delay,
            is_unexpected=True,
        )
        return ProgressStep(step.name, StepOutcome.FAILED, text)

    async def _delete_owned(self, _: object) -> None:
        if not await self._context.delete_owned():
            raise RetryLater("some are still being deleted")

    async def _with_status(self, scope: object) -> ReconcileResult:
        async def update_status(_: object) -> None:
            self._result = self._reconciler.status(scope, self._with_progress())

        step = await self._run_step(Step(UPDATE_STATUS, update_status), scope)
        if not step.is_done:
            self._finished.append(step)
        return self._with_progress()

    def _with_progress(self) -> ReconcileResult:
        return replace(self._result, progress=self.progress)


def commit_result(
    tx: Transaction,
    kinds: Kinds,
    resource: Resource,
    lease: Lease,
    result: ReconcileResult,
    now: datetime,
) -> bool:
    """Write what a run over `resource`, as it was when leased, has found; True when its row was removed.

    Raises LeaseLost when the result is out of date.
    """
    tx.check_lease(lease)
    row = tx.get(resource.id)
    assert row is not None, "A leased row exists: its lease is removed with it."
    is_gone = row.deleted_at is not None and resource.deleted_at is not None and result.is_done
    finalizers = tuple(name for name in row.finalizers if not is_gone or name != FINALIZER)
    if is_gone and not finalizers:
        delete_row(tx, kinds, row, now)
        return True
    is_superseded = row.deleted_at is None and row.state != resource.state
    is_newly_deleted = row.deleted_at is not None and resource.deleted_at is None
    status, state = row.status, row.state
    if result.status is not None and not is_superseded and not is_newly_deleted:
        # Else a request set the state during the run, which knew nothing of it.
        status, state = result.status.SerializeToString(deterministic=True), result.state
    delay = result.requeue_after
    tx.commit_result(
        lease,
        status=status,
        state=state,
        observed_version=resource.resource_version if result.is_done else None,
        finalizers=finalizers,
        due_at=None if delay is None else now + timedelta(seconds=delay),
        attempts=lease.attempts + 1 if result.is_unexpected else 0,
        now=now,
    )
    if (status, state) != (row.status, row.state):
        if row.owner_id:
            tx.enqueue(row.owner_id, now)
        enqueue_dependents(tx, kinds, [row, replace(row, status=status, state=state)], now)
    for woken_id in sorted(result.wakes):
        tx.enqueue(woken_id, now)
    if not is_superseded:
        _report_to_operations(tx, resource, result, now)
    return False


def _report_to_operations(
    tx: Transaction, resource: Resource, result: ReconcileResult, now: datetime
) -> None:
    operations.report_progress(tx, resource.id, result.progress, result.message, now)
    if result.error is not None or result.is_done:
        error = None if result.error is None else _as_api_error(resource.id, result.error)
        version = resource.resource_version
        operations.finish_for(tx, resource.id, now, observed_version=version, error=error)


def _as_api_error(resource_id: str, failed: Failed) -> ApiError:
    error = contract.bad_state(resource_id, str(failed))
    for detail in error.details:
        detail.code = failed.reason
    return ApiError(failed.code, error.message, error.details)


def back_off_seconds(attempts: int) -> float:
    """Return 0.2 s, doubled with each unexpected error in a row, at most 30 s."""
    return min(LONGEST_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2 ** min(attempts, 16))


def _is_cancelled() -> bool:
    """Return whether this task is being stopped. A cancellation that leaks out of a library is an error
    instead.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks, wait until they have ended, and drop what they raised."""
    for task in tasks:
        task.add_done_callback(_drop_exception)
        task.cancel()
    await asyncio.wait(tasks)


def _drop_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve it, or asyncio would log it."""
    if not task.cancelled():
        task.exception()
