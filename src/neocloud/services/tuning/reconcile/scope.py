"""Observations of one run over a job, and their consequences: the next attempt, and the status.

An attempt starts from the newest checkpoint, after a stop and after a loss.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

from neocloud.core import wire
from neocloud.core.evaluation_gate import Verdict
from neocloud.core.reconcile.reconciler import POLL_SECONDS, Context, Failed, ReconcileResult, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Store, Transaction
from neocloud.engines.base import Observation
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.messages.neocloud.tuning.v1 import (
    FineTuningJob,
    FineTuningJobStatus,
    GateVerdict,
    Hyperparameters,
)
from neocloud.services.compute.public import Preset
from neocloud.services.tuning.rules import shape_of
from neocloud.services.tuning.rules.memory import nodes_of
from neocloud.services.tuning.rules.outcome import Failure, Outcome, Success
from neocloud.services.tuning.types import (
    INVALID_FILE,
    WORKING,
    Desired,
    JobState,
    Reason,
    RuntimeState,
    StateEnum,
    namespace,
    read_runtime_state,
    work_folder,
    write_runtime_state,
)
from neocloud.services.tuning.work_folder import WorkFolder

MOST_LOSSES = 3
"""How many attempts in a row may be lost without progress."""
TRAINING_RESYNC_SECONDS = 1.0
CLUSTER_RESYNC_SECONDS = 3.0
"""Longer, because observing a cluster runs a command on its login node."""
_FINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_SPEED_STEPS = 20
"""How many of the last reported steps the estimated finish is computed from."""


@dataclass
class JobScope:
    """The state of a job as one run observes it, and what its steps found."""

    context: Context
    job: FineTuningJob
    runtime: RuntimeState
    folder: WorkFolder
    observation: Observation
    outcome: Outcome | None
    """How this attempt ended; None while it has not."""
    shape: Preset | None
    """The shape of the pod, or of a node of the cluster; None when the cluster is gone."""
    is_training: bool = False
    is_queued: bool = False
    """Whether Slurm has no nodes for the job now."""
    hyperparameters: Hyperparameters | None = None
    warnings: tuple[str, ...] | None = None
    model_id: str = ""
    model_name: str = ""
    result_files: tuple[str, ...] = ()
    verdict: Verdict | None = None
    """The verdict of the job's gate, if it has one and this run has decided."""
    output: str = ""
    """The folder of a bucket that the result was written to in this run."""

    @property
    def job_id(self) -> str:
        return self.job.metadata.id

    @property
    def state(self) -> JobState:
        """The state at the beginning of the run."""
        return JobState(StateEnum.Name(self.job.status.state))

    @property
    def has_ended(self) -> bool:
        """Return whether only the removal of its workloads is left to do."""
        if self.runtime.desired is Desired.CANCEL:
            return True
        is_final = self.state in (JobState.SUCCEEDED, JobState.FAILED)
        return self.runtime.desired is Desired.RUN and is_final

    @property
    def last_step(self) -> int:
        return self.folder.metrics[-1].step if self.folder.metrics else 0

    def add_event(self, message: str, level: str = "info") -> None:
        self.folder.add_event(self.context.now.timestamp(), message, level)


async def read_scope(context: Context, dependencies: Dependencies) -> JobScope:
    job = wire.message(context.resource, FineTuningJob)
    job_id = job.metadata.id
    runtime = await dependencies.store.read(lambda tx: read_runtime_state(tx, job_id))
    folder = WorkFolder(work_folder(dependencies.settings.home, job_id))
    observation = await dependencies.engine.observe(namespace(job_id))
    outcome = await asyncio.to_thread(folder.outcome, runtime.attempt)
    await asyncio.to_thread(lambda: folder.metrics)
    shape = shape_of(job.spec)
    if job.spec.slurm_cluster_id:
        cluster = await context.get(job.spec.slurm_cluster_id)
        shape = nodes_of(ClusterSpec.FromString(cluster.spec)).shape if cluster is not None else None
    return JobScope(context, job, runtime, folder, observation, outcome, shape)


async def save_runtime_state(store: Store, scope: JobScope, runtime: RuntimeState) -> bool:
    """Store the runtime state unless a caller has changed it since the run began; return whether it is
    stored."""

    def write(tx: Transaction) -> bool:
        is_same = read_runtime_state(tx, scope.job_id) == scope.runtime
        if is_same:
            write_runtime_state(tx, scope.job_id, runtime)
        return is_same

    is_stored = await store.write(write)
    if is_stored:
        scope.runtime = runtime
    return is_stored


async def start_next_attempt(store: Store, scope: JobScope, runtime: RuntimeState) -> NoReturn:
    """Raise RetryLater, since the scope was read for the attempt before."""
    following = replace(runtime, attempt=runtime.attempt + 1, earlier_slurm_jobs=())
    await save_runtime_state(store, scope, following)
    raise RetryLater(f"attempt {following.attempt} is being started", delay_seconds=POLL_SECONDS)


async def handle_loss(store: Store, scope: JobScope, workload: str, reason: str) -> NoReturn:
    """Start the next attempt after a workload ended without an outcome. Raise Failed when it keeps happening
    without progress."""
    has_progressed = scope.last_step > scope.runtime.lost_step
    times = 1 if has_progressed else scope.runtime.lost + 1
    if times > MOST_LOSSES:
        raise Failed(
            Reason.WORKER_LOST,
            f"The {workload} ended {times} times without progress ({reason}). It may need more memory:"
            " start another job with a larger preset, or resume this one.",
        )
    scope.add_event(f"The {workload} was lost ({reason}).", "warn")
    await start_next_attempt(store, scope, replace(scope.runtime, lost=times, lost_step=scope.last_step))


def job_status(scope: JobScope, result: ReconcileResult) -> ReconcileResult:
    """Return the result with the status that follows from what the run observed."""
    state = _state(scope, result)
    status = FineTuningJobStatus()
    status.CopyFrom(scope.job.status)
    status.state = StateEnum.Value(state)
    status.reconciling = not result.is_done
    now = scope.context.now
    if state is JobState.RUNNING and not status.HasField("started_at"):
        status.started_at.FromDatetime(now)
    if state in _FINAL and not status.HasField("finished_at"):
        status.finished_at.FromDatetime(now)
    if scope.hyperparameters is not None:
        status.hyperparameters.CopyFrom(scope.hyperparameters)
    if scope.warnings is not None:
        status.warnings[:] = scope.warnings
    _set_progress(status, scope, state)
    if isinstance(scope.outcome, Success) and (state is JobState.SUCCEEDED or scope.model_id):
        _set_results(status, scope, scope.outcome)
    if state is JobState.FAILED and state is not scope.state:
        _set_error(status, scope, result)
    seconds = CLUSTER_RESYNC_SECONDS if scope.job.spec.slurm_cluster_id else TRAINING_RESYNC_SECONDS
    return result.with_status(status, state, seconds if state in WORKING else None)


def _state(scope: JobScope, result: ReconcileResult) -> JobState:
    if scope.context.resource.deleted_at:
        return JobState.DELETING
    if result.error:
        return JobState.FAILED
    if scope.runtime.desired is Desired.CANCEL:
        return JobState.CANCELLED
    if scope.runtime.desired is Desired.PAUSE and result.is_done:
        return JobState.PAUSED
    if scope.has_ended:
        return scope.state
    if scope.outcome and result.is_done:
        return JobState.SUCCEEDED if isinstance(scope.outcome, Success) else JobState.FAILED
    if scope.is_training:
        return JobState.RUNNING
    if scope.is_queued:
        return JobState.QUEUED
    return scope.state if scope.state in WORKING else JobState.QUEUED


def _set_progress(status: FineTuningJobStatus, scope: JobScope, state: JobState) -> None:
    metrics = scope.folder.metrics
    if metrics:
        status.step, status.total_steps = metrics[-1].step, metrics[-1].total_steps
        status.trained_tokens = max(each.tokens for each in metrics)
    status.ClearField("estimated_finish")
    recent = [each for each in metrics if each.train_loss is not None][-_SPEED_STEPS:]
    if state is not JobState.RUNNING or len(recent) < 2 or scope.outcome:
        return
    steps = recent[-1].step - recent[0].step
    seconds = recent[-1].time - recent[0].time
    if steps > 0:
        left = (status.total_steps - status.step) * seconds / steps
        status.estimated_finish.FromDatetime(scope.context.now + timedelta(seconds=left))


def verdict_message(verdict: Verdict) -> GateVerdict:
    found = GateVerdict(passed=verdict.passed)
    for each in verdict.rules:
        found.rules.add(asked=each.asked, measured=each.measured, passed=each.passed, why=each.why)
    return found


def _set_results(status: FineTuningJobStatus, scope: JobScope, outcome: Success) -> None:
    status.fine_tuned_model_id = scope.model_id or status.fine_tuned_model_id
    status.fine_tuned_model = scope.model_name or status.fine_tuned_model
    status.output = scope.output or status.output
    if scope.result_files:
        status.result_files[:] = scope.result_files
    if scope.verdict is not None:
        status.gate.CopyFrom(verdict_message(scope.verdict))
    status.trained_tokens = outcome.trained_tokens
    status.evaluation.CopyFrom(outcome.evaluation())


def _set_error(status: FineTuningJobStatus, scope: JobScope, result: ReconcileResult) -> None:
    if result.error:
        reason = result.error.reason
        status.error.code, status.error.message = reason, str(result.error)
        status.error.param = next((name for name, each in INVALID_FILE.items() if each == reason), "")
    elif isinstance(scope.outcome, Failure):
        status.error.code = scope.outcome.code
        status.error.message = scope.outcome.message
        status.error.param = scope.outcome.param
