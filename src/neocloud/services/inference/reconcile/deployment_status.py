"""Compute a deployment's status at the end of every reconcile run. Pure."""

from neocloud.core import contract
from neocloud.core.reconcile.reconciler import ReconcileResult
from neocloud.messages.neocloud.inference.v1 import DeploymentStatus, Replica
from neocloud.services.inference.reconcile.scope import Scope
from neocloud.services.inference.resources import DeploymentState

StateEnum = DeploymentStatus.State


def deployment_status(scope: Scope, result: ReconcileResult) -> ReconcileResult:
    old = scope.deployment.status
    state = _state(scope, result)
    status = DeploymentStatus(
        state=StateEnum.Value(state),
        message=result.message,
        reconciling=not result.is_done,
        wanted_replicas=scope.desired,
        start_seconds=old.start_seconds,
    )
    status.replicas.extend(scope.records[name] for name in sorted(scope.records, key=_number))
    if scope.plan is not None:
        status.memory = scope.plan.sentence
        status.context_length = scope.plan.context_length
        status.max_concurrency = scope.plan.max_concurrency
    if scope.model is not None:
        status.served_names.append(scope.served_name)
        status.served_names.extend(sorted(adapter.name for adapter in scope.adapters))
    _record_start(status, scope, state)
    return result.with_status(status, state, scope.resync_seconds)


def _state(scope: Scope, result: ReconcileResult) -> DeploymentState:
    if scope.context.resource.deleted_at:
        return DeploymentState.DELETING
    if any(record.state == Replica.READY for record in scope.records.values()):
        return DeploymentState.READY
    if result.error:
        return DeploymentState.ERROR
    was = DeploymentState(StateEnum.Name(scope.deployment.status.state))
    if not scope.desired:
        return DeploymentState.ASLEEP if result.is_done else was
    is_first = was is DeploymentState.CREATING
    return DeploymentState.CREATING if is_first else DeploymentState.STARTING


def _record_start(status: DeploymentStatus, scope: Scope, state: DeploymentState) -> None:
    """Record how long a cold start takes: the wait that the gateway announces to callers of a cold model."""
    old, now = scope.deployment.status, scope.context.now
    if state is DeploymentState.READY:
        if old.state != status.state:
            took = now - (contract.to_datetime(old.starting_since) if old.HasField("starting_since") else now)
            status.start_seconds = max(1, round(took.total_seconds()))
    elif scope.desired and state is not DeploymentState.DELETING:
        is_going_on = old.HasField("starting_since") and state is not DeploymentState.ERROR
        begin = contract.to_datetime(old.starting_since) if is_going_on else now
        status.starting_since.FromDatetime(begin)


def _number(name: str) -> tuple[int, str]:
    """ "replica-10" comes after "replica-9"."""
    return (len(name), name)
