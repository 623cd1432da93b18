"""The status of a cluster, computed once at the end of every run. Pure."""

from neocloud.core.reconcile.reconciler import RESYNC_SECONDS, ReconcileResult
from neocloud.messages.neocloud.slurm.v1 import ClusterStatus, Condition
from neocloud.services.slurm.reconcile.scope import Scope, public_host_key
from neocloud.services.slurm.types import ConditionType, State

StateEnum = ClusterStatus.State

RECOVERY_SECONDS = 0.3


def cluster_status(scope: Scope, result: ReconcileResult) -> ReconcileResult:
    old = scope.cluster.status
    state = _state(scope, result)
    status = ClusterStatus(
        state=StateEnum.Value(state),
        reconciling=not result.is_done,
        slurm_version=scope.slurm_version or old.slurm_version,
        configuration_version=scope.configuration_version or old.configuration_version,
        shared_root_filesystem_id=scope.shared_root_id or old.shared_root_filesystem_id,
    )
    for step in result.progress:
        status.steps.add(name=step.name, outcome=step.outcome, message=step.message)
    status.conditions.extend(_conditions(scope, result, state))
    status.login.CopyFrom(old.login)
    if scope.view is not None:
        status.login.host = "127.0.0.1"
        status.login.port = scope.login_port
        del status.login.host_keys[:]
        status.login.host_keys.append(public_host_key(scope.view.secrets.ssh_host_key))
    _add_nodes(status, scope)
    return result.with_status(status, state, RECOVERY_SECONDS if scope.is_recovering else RESYNC_SECONDS)


def _state(scope: Scope, result: ReconcileResult) -> State:
    if scope.context.resource.deleted_at:
        return State.DELETING
    if result.error:
        return State.ERROR
    if result.is_done:
        return State.READY
    was = StateEnum.Name(scope.cluster.status.state)
    if was == State.STOPPED:
        return State.STOPPED
    return State.READY if was in {State.READY, State.UPDATING} else State.CREATING


def _conditions(scope: Scope, result: ReconcileResult, state: State) -> list[Condition]:
    message = result.message
    reason = result.error.reason if result.error else ""
    available = [name for name in scope.workers if name in scope.nodes and scope.nodes[name].is_available]
    return [
        Condition(
            type=ConditionType.READY,
            status=str(state in {State.READY, State.UPDATING}),
            reason=reason,
            message=message,
        ),
        Condition(
            type=ConditionType.NODES_AVAILABLE,
            status=str(len(available) == len(scope.workers)),
            message=f"{len(available)} of {len(scope.workers)} workers can run jobs",
        ),
    ]


def _add_nodes(status: ClusterStatus, scope: Scope) -> None:
    """Add the nodes. They keep their last known state when this run could not reach Slurm."""
    old = {node.name: node for node in scope.cluster.status.nodes}
    for name, node_set in scope.workers.items():
        row = status.nodes.add(name=name, node_set=node_set)
        if name in old:
            row.CopyFrom(old[name])
        pod = scope.observation.pod(name)
        if pod is not None:
            row.address = pod.ip or ""
            row.restarts = pod.restart_count
            if pod.started_at and name not in scope.unreported:
                row.started_at.FromDatetime(pod.started_at)
        node = scope.nodes.get(name)
        if node is not None:
            row.slurm_state, row.reason = node.state_text, node.reason
