"""A job's status, computed once at the end of every run from what the run saw. Pure."""

from datetime import timedelta
from typing import Any

from neocloud.core.reconcile.reconciler import ReconcileResult
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobStatus
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.runtime_state import Wish
from neocloud.services.tuning.types import WORKING, State, StateEnum

TRAINING_RESYNC_SECONDS = 1.0
CLUSTER_RESYNC_SECONDS = 3.0
"""To observe a cluster is to run a command on its login node."""
_FINAL = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


def job_status(scope: Scope, result: ReconcileResult) -> ReconcileResult:
    state = _state(scope, result)
    status: Any = FineTuningJobStatus()
    status.CopyFrom(scope.job.status)
    status.state = StateEnum.Value(state)
    status.reconciling = not result.is_done
    now = scope.context.now
    if state is State.RUNNING and not status.HasField("started_at"):
        status.started_at.FromDatetime(now)
    if state in _FINAL and not status.HasField("finished_at"):
        status.finished_at.FromDatetime(now)
    if scope.hyperparameters is not None:
        status.hyperparameters.CopyFrom(scope.hyperparameters)
    if scope.warnings is not None:
        status.warnings[:] = scope.warnings
    _add_progress(status, scope, state)
    if state is State.SUCCEEDED:
        _add_results(status, scope)
    if state is State.FAILED and state is not scope.state:
        _add_error(status, scope, result)
    seconds = CLUSTER_RESYNC_SECONDS if scope.job.spec.slurm_cluster_id else TRAINING_RESYNC_SECONDS
    return result.with_status(status, state, seconds if state in WORKING else None)


def _state(scope: Scope, result: ReconcileResult) -> State:
    if scope.context.resource.deleted_at:
        return State.DELETING
    if result.error:
        return State.FAILED
    if scope.record.wish is Wish.CANCEL:
        return State.CANCELLED
    if scope.record.wish is Wish.PAUSE and result.is_done:
        return State.PAUSED
    if scope.has_ended:
        return scope.state
    if scope.outcome and result.is_done:
        return State.SUCCEEDED if scope.outcome["state"] == "succeeded" else State.FAILED
    if scope.is_training:
        return State.RUNNING
    if scope.is_queued:
        return State.QUEUED
    return scope.state if scope.state in WORKING else State.QUEUED


def _add_progress(status: Any, scope: Scope, state: State) -> None:
    metrics = scope.folder.metrics
    if metrics:
        status.step, status.total_steps = metrics[-1]["step"], metrics[-1]["total_steps"]
        status.trained_tokens = max(row.get("tokens", 0) for row in metrics)
    status.ClearField("estimated_finish")
    recent = [row for row in metrics if "train_loss" in row][-20:]
    if state is not State.RUNNING or len(recent) < 2 or scope.outcome:
        return
    steps = recent[-1]["step"] - recent[0]["step"]
    seconds = recent[-1]["time"] - recent[0]["time"]
    if steps > 0:
        left = (status.total_steps - status.step) * seconds / steps
        status.estimated_finish.FromDatetime(scope.context.now + timedelta(seconds=left))


def _add_results(status: Any, scope: Scope) -> None:
    if not scope.outcome:
        return
    status.fine_tuned_model_id = scope.model_id or status.fine_tuned_model_id
    status.fine_tuned_model = scope.model_name or status.fine_tuned_model
    if scope.result_files:
        status.result_files[:] = scope.result_files
    status.trained_tokens = scope.outcome["trained_tokens"]
    for name in ("base_perplexity", "fine_tuned_perplexity", "perplexity_improvement", "conversations"):
        setattr(status.evaluation, name, scope.outcome[name])


def _add_error(status: Any, scope: Scope, result: ReconcileResult) -> None:
    if result.error:
        status.error.code, status.error.message = result.error.reason, str(result.error)
        return
    status.error.code = scope.outcome["code"]
    status.error.message = scope.outcome["message"]
    status.error.param = scope.outcome["param"]
