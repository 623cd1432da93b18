"""Reconcile endpoints and jobs: addresses, filesystems, one pod each.

The program of a job runs to its end, and again when it fails and attempts are left. The outcome is stored
before the pod is removed, so that it survives a kill of the server.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from neocloud.core.reconcile.reconciler import RESYNC_SECONDS, Context, Reconciler, ReconcileResult, Step
from neocloud.core.service import Dependencies
from neocloud.engines.base import ObservedPod, PodPhase
from neocloud.messages.nebius.ai.v1 import JobSpec, JobStatus
from neocloud.services.ai.reconcile.scope import (
    WorkloadScope,
    image_note,
    read_scope,
    set_addresses,
    set_details,
)
from neocloud.services.ai.reconcile.workload import EndpointReconciler, WorkloadReconciler
from neocloud.services.ai.types import ENDED, FOR_GOOD, JOB, JobState, JobStateEnum, Reason

_OVER = (PodPhase.SUCCEEDED, PodPhase.FAILED)


class JobReconciler(WorkloadReconciler):
    kind = JOB

    async def scope(self, context: Context) -> WorkloadScope:
        attempts = JobSpec.FromString(context.resource.spec).restart_attempts
        scope = await read_scope(context, self._engine, self._store, attempts)
        if not scope.should_run:
            return scope
        pod = scope.current_pod
        details = JobStatus.FromString(context.resource.status).state_details
        if scope.pod is None and scope.state == JobState.ERROR and details.code in FOR_GOOD:
            await self._store_outcome(scope, JobState.ERROR, details.code, details.message)
        elif pod is not None and pod.phase in _OVER and _was_stopped(scope):
            await self._stop(scope)  # it ended with the cloud: this attempt runs again
        elif pod is not None and pod.phase in _OVER:
            await self._store_end(scope, pod)
        elif _is_late(scope):
            await self._store_outcome(scope, JobState.FAILED, Reason.TIMED_OUT, _LATE)
        return scope

    def steps(self, scope: WorkloadScope) -> Sequence[Step[WorkloadScope]]:
        steps = super().steps(scope)
        return steps if scope.should_run else (*steps, Step("Store its outcome", self._close))

    async def _store_end(self, scope: WorkloadScope, pod: ObservedPod) -> None:
        if pod.phase is PodPhase.SUCCEEDED:
            await self._store_outcome(scope, JobState.COMPLETED)
        elif scope.runtime.attempts_left:
            why = f"Attempt {scope.runtime.attempt} failed: {pod.message}."
            await self.store_runtime(
                scope,
                lambda runtime: replace(
                    runtime,
                    attempt=runtime.attempt + 1,
                    attempts_left=runtime.attempts_left - 1,
                    code=Reason.RESTARTED,
                    message=why,
                ),
            )
        else:
            await self._store_outcome(scope, JobState.FAILED, Reason.EXITED, f"{pod.message}.")

    async def _store_outcome(
        self, scope: WorkloadScope, state: JobState, code: str = "", message: str = ""
    ) -> None:
        now = scope.context.now.timestamp()
        await self.store_runtime(
            scope,
            lambda runtime: replace(runtime, outcome=state, finished_at=now, code=code, message=message),
        )

    async def _wait(self, scope: WorkloadScope) -> None:
        """Wait until the program runs. A short one may have ended before it was observed."""
        pod = scope.current_pod
        if pod is not None and pod.phase in _OVER:
            if not scope.runtime.started_at:
                now = scope.context.now.timestamp()
                await self.store_runtime(scope, lambda runtime: replace(runtime, started_at=now))
            return
        await super()._wait(scope)

    async def _close(self, scope: WorkloadScope) -> None:
        """Release the addresses of a job that does not run; a restart gets others."""
        await scope.context.delete_owned()
        if not scope.runtime.outcome:
            await self._store_outcome(scope, JobState.CANCELLED, Reason.CANCELLED)

    def status(self, scope: WorkloadScope, result: ReconcileResult) -> ReconcileResult:
        state, runtime = _state(scope, result), scope.runtime
        status = JobStatus.FromString(scope.context.resource.status)
        status.state = JobStateEnum.Value(state)
        set_addresses(status, scope, state)
        if state in ENDED:
            del status.private_endpoints[:], status.public_endpoints[:]
        if result.error is not None:
            set_details(status, result.error.reason, str(result.error))
        else:
            waiting = result.waiting if scope.should_run else ""
            set_details(status, runtime.code, runtime.message or waiting or image_note(scope))
        for field, seconds in (("started_at", runtime.started_at), ("finished_at", runtime.finished_at)):
            status.ClearField(field)
            if seconds:
                getattr(status, field).FromDatetime(datetime.fromtimestamp(seconds, UTC))
        return result.with_status(status, state, _resync(scope, state))


_LATE = "It ran for longer than spec.timeout allows, and was ended."


def _was_stopped(scope: WorkloadScope) -> bool:
    """Return whether the job stopped with the whole cloud, which returns jobs to their first state."""
    return scope.state == JobState.PROVISIONING and bool(scope.runtime.started_at)


def _is_late(scope: WorkloadScope) -> bool:
    rest = _rest_seconds(scope)
    return rest is not None and rest <= 0


def _rest_seconds(scope: WorkloadScope) -> float | None:
    """Return the seconds until its timeout; None while there is none."""
    spec = scope.spec
    if not isinstance(spec, JobSpec) or not spec.HasField("timeout") or not scope.runtime.started_at:
        return None
    limit = spec.timeout.seconds + spec.timeout.nanos / 1e9
    return scope.runtime.started_at + limit - scope.context.now.timestamp()


def _state(scope: WorkloadScope, result: ReconcileResult) -> JobState:
    if scope.is_deleting:
        return JobState.DELETING
    if result.error is not None:
        return JobState.ERROR
    if scope.runtime.outcome and scope.pod is None:
        return JobState(scope.runtime.outcome)
    if not scope.should_run:
        return JobState.CANCELLING if scope.runtime.is_stopped else JobState.RUNNING
    if scope.is_up or scope.current_pod is not None and scope.runtime.started_at:
        return JobState.RUNNING
    return JobState.STARTING if scope.interface is not None else JobState.PROVISIONING


def _resync(scope: WorkloadScope, state: JobState) -> float | None:
    if not scope.should_run and scope.runtime.outcome and scope.pod is None:
        return None
    if scope.current_pod is not None and scope.current_pod.phase in _OVER:
        return 0.0  # the next run stores the outcome
    rest = _rest_seconds(scope)
    return RESYNC_SECONDS if rest is None else max(0.0, min(rest, RESYNC_SECONDS))


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler[WorkloadScope]]:
    return (EndpointReconciler(dependencies), JobReconciler(dependencies))
