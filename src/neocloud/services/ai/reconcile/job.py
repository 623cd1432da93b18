"""A job: its program runs to its end, and again when it failed and attempts are left.

How it ended is written into the record before the pod goes, so that no kill of the server loses it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from neocloud.core.reconcile.reconciler import RESYNC_SECONDS, Context, ReconcileResult, Step
from neocloud.engines.base import ObservedPod, PodPhase
from neocloud.messages.nebius.ai.v1 import JobSpec, JobStatus
from neocloud.services.ai.reconcile.scope import WorkloadScope, read_scope
from neocloud.services.ai.reconcile.shown import show_addresses, show_details
from neocloud.services.ai.reconcile.workload import WorkloadReconciler
from neocloud.services.ai.record import Record
from neocloud.services.ai.resources import ENDED, JOB, JobState, JobStateEnum, Reason

_OVER = (PodPhase.SUCCEEDED, PodPhase.FAILED)


class JobReconciler(WorkloadReconciler):
    kind = JOB

    async def scope(self, context: Context) -> WorkloadScope:
        attempts = JobSpec.FromString(context.resource.spec).restart_attempts
        scope = await read_scope(context, self._engine, self._store, attempts)
        if not scope.should_run:
            return scope
        pod = scope.current_pod
        if pod is not None and pod.phase in _OVER and _was_stopped(scope):
            await self._stop(scope)  # it ended with the cloud: this attempt is restarted
        elif pod is not None and pod.phase in _OVER:
            await self._note_end(scope, pod)
        elif _is_late(scope):
            await self.note(
                scope, lambda record: _ended(record, scope, JobState.FAILED, Reason.TIMED_OUT, _LATE)
            )
        return scope

    def steps(self, scope: WorkloadScope) -> Sequence[Step]:
        steps = super().steps(scope)
        return steps if scope.should_run else (*steps, Step("Write down its end", self._close))

    async def _note_end(self, scope: WorkloadScope, pod: ObservedPod) -> None:
        if pod.phase is PodPhase.SUCCEEDED:
            await self.note(scope, lambda record: _ended(record, scope, JobState.COMPLETED, "", ""))
        elif scope.record.attempts_left:
            why = f"Attempt {scope.record.attempt} failed: {pod.message}."
            await self.note(
                scope,
                lambda record: replace(
                    record,
                    attempt=record.attempt + 1,
                    attempts_left=record.attempts_left - 1,
                    code=Reason.STARTED_ANEW,
                    message=why,
                ),
            )
        else:
            await self.note(
                scope, lambda record: _ended(record, scope, JobState.FAILED, Reason.EXITED, f"{pod.message}.")
            )

    async def _wait(self, scope: WorkloadScope) -> None:
        """A short one may be over before anybody sees it run."""
        pod = scope.current_pod
        if pod is not None and pod.phase in _OVER:
            if not scope.record.started_at:
                now = scope.context.now.timestamp()
                await self.note(scope, lambda record: replace(record, started_at=now))
            return
        await super()._wait(scope)

    async def _close(self, scope: WorkloadScope) -> None:
        """Who does not run needs no addresses; one that is restarted gets others."""
        await scope.context.delete_owned()
        if not scope.record.outcome:
            await self.note(
                scope, lambda record: _ended(record, scope, JobState.CANCELLED, Reason.CANCELLED, "")
            )

    def status(self, scope: WorkloadScope, result: ReconcileResult) -> ReconcileResult:
        state, record = _state(scope, result), scope.record
        status: Any = JobStatus()
        status.CopyFrom(scope.message.status)
        status.state = JobStateEnum.Value(state)
        show_addresses(status, scope, state)
        if state in ENDED:
            del status.private_endpoints[:], status.public_endpoints[:]
        if result.error is not None:
            show_details(status, result.error.reason, str(result.error))
        else:
            show_details(status, record.code, record.message or (result.waiting if scope.should_run else ""))
        for field, seconds in (("started_at", record.started_at), ("finished_at", record.finished_at)):
            status.ClearField(field)
            if seconds:
                getattr(status, field).FromDatetime(datetime.fromtimestamp(seconds, UTC))
        return result.with_status(status, state, _resync(scope, state))


_LATE = "It ran for longer than spec.timeout allows, and was ended."


def _was_stopped(scope: WorkloadScope) -> bool:
    """With the whole cloud: that gives a job that ran its first state again."""
    return scope.state == JobState.PROVISIONING and bool(scope.record.started_at)


def _is_late(scope: WorkloadScope) -> bool:
    rest = _rest_seconds(scope)
    return rest is not None and rest <= 0


def _rest_seconds(scope: WorkloadScope) -> float | None:
    """Until its time is up; None while nothing counts it."""
    if not scope.spec.HasField("timeout") or not scope.record.started_at:
        return None
    limit = scope.spec.timeout.seconds + scope.spec.timeout.nanos / 1e9
    return scope.record.started_at + limit - scope.context.now.timestamp()


def _ended(record: Record, scope: WorkloadScope, state: JobState, code: str, message: str) -> Record:
    now = scope.context.now.timestamp()
    return replace(record, outcome=state, finished_at=now, code=code, message=message)


def _state(scope: WorkloadScope, result: ReconcileResult) -> JobState:
    if scope.is_deleting:
        return JobState.DELETING
    if result.error is not None:
        return JobState.ERROR
    if scope.record.outcome and scope.pod is None:
        return JobState(scope.record.outcome)
    if not scope.should_run:
        return JobState.CANCELLING if scope.record.is_stopped else JobState.RUNNING
    if scope.is_up or scope.current_pod is not None and scope.record.started_at:
        return JobState.RUNNING
    return JobState.STARTING if scope.interface is not None else JobState.PROVISIONING


def _resync(scope: WorkloadScope, state: JobState) -> float | None:
    if not scope.should_run and scope.record.outcome and scope.pod is None:
        return None
    if scope.current_pod is not None and scope.current_pod.phase in _OVER:
        return 0.0  # the next run begins with its end
    rest = _rest_seconds(scope)
    return RESYNC_SECONDS if rest is None else max(0.0, min(rest, RESYNC_SECONDS))
