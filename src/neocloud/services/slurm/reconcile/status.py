"""A cluster's status, computed once at the end of every pass from what the pass saw. Pure."""

from typing import Any

from neocloud.core import contract
from neocloud.core.reconcile.reconciler import Outcome, Settled
from neocloud.services.slurm.reconcile.keys import public_host_key
from neocloud.services.slurm.reconcile.scope import Scope
from neocloud.services.slurm.resources import ClusterStatus, ConditionType, State

StateEnum = contract.enum("neocloud.slurm.v1.ClusterStatus.State")

RECOVERY_SECONDS = 0.3
RESYNC_SECONDS = 10.0


def cluster_status(scope: Scope, outcome: Outcome) -> Settled:
    old = scope.cluster.status
    state = _state(scope, outcome)
    status = ClusterStatus(
        state=StateEnum.Value(state),
        reconciling=not outcome.is_done,
        slurm_version=scope.slurm_version or old.slurm_version,
        configuration_version=scope.configuration_version or old.configuration_version,
        shared_root_filesystem_id=scope.shared_root_id or old.shared_root_filesystem_id,
    )
    for step in outcome.steps:
        status.steps.add(name=step.name, outcome=step.outcome, message=step.message)
    status.conditions.extend(_conditions(scope, outcome, state))
    status.login.CopyFrom(old.login)
    if scope.view is not None:
        status.login.host = "127.0.0.1"
        status.login.port = scope.login_port
        del status.login.host_keys[:]
        status.login.host_keys.append(public_host_key(scope.view.secrets.ssh_host_key))
    _add_nodes(status, scope)
    return Settled(status, state, RECOVERY_SECONDS if scope.is_recovering else RESYNC_SECONDS)


def _state(scope: Scope, outcome: Outcome) -> State:
    if scope.context.resource.deleted_at:
        return State.DELETING
    if outcome.failed:
        return State.ERROR
    if outcome.is_done:
        return State.READY
    was = StateEnum.Name(scope.cluster.status.state)
    if was == State.STOPPED:
        return State.STOPPED
    if was not in {State.READY, State.UPDATING}:
        return State.CREATING
    is_new_wish = outcome.observed_version < scope.context.resource.resource_version
    return State.UPDATING if is_new_wish else State.READY


def _conditions(scope: Scope, outcome: Outcome, state: State) -> list[Any]:
    condition = contract.message("neocloud.slurm.v1.Condition")
    message = str(outcome.failed) if outcome.failed else outcome.waiting
    reason = outcome.failed.reason if outcome.failed else ""
    available = [name for name in scope.workers if name in scope.nodes and scope.nodes[name].is_available]
    return [
        condition(
            type=ConditionType.READY,
            status=str(state in {State.READY, State.UPDATING}),
            reason=reason,
            message=message,
        ),
        condition(
            type=ConditionType.NODES_AVAILABLE,
            status=str(len(available) == len(scope.workers)),
            message=f"{len(available)} of {len(scope.workers)} workers can run jobs",
        ),
    ]


def _add_nodes(status: Any, scope: Scope) -> None:
    """Nodes keep what was known of them when this pass could not ask Slurm."""
    old = {node.name: node for node in scope.cluster.status.nodes}
    for name, node_set in scope.workers.items():
        row = status.nodes.add(name=name, node_set=node_set)
        if name in old:
            row.CopyFrom(old[name])
        pod = scope.observation.pod(name)
        if pod is not None:
            row.address = pod.ip or ""
            row.restarts = pod.restart_count
            if pod.started_at and name not in scope.untold:
                row.started_at.FromDatetime(pod.started_at)
        node = scope.nodes.get(name)
        if node is not None:
            row.slurm_state, row.reason = node.state_text, node.reason
