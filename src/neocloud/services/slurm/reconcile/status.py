"""The status of a cluster, computed once at the end of a run from what the run saw."""

from collections.abc import Iterable
from dataclasses import replace

from neocloud.core.reconcile.reconciler import IDLE_RESYNC_SECONDS, RESYNC_SECONDS, ReconcileResult
from neocloud.messages.neocloud.slurm.v1 import ClusterStatus, Condition
from neocloud.services.slurm.public import FLEET_PREFIX, SPARE_REASON
from neocloud.services.slurm.reconcile.keys import public_host_key
from neocloud.services.slurm.reconcile.login_port import closed_message
from neocloud.services.slurm.reconcile.nodes import has_settled
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.types import MAX_MEMBERS, ClusterState, ConditionType, Reason

StateEnum = ClusterStatus.State

RECOVERY_SECONDS = 0.3
POWER_SECONDS = 3.0
"""While a cluster has elastic sets: how soon the state of a node that Slurm powers up is seen."""
WATCH_SECONDS = 3.0
"""Where changes are expected that enqueue no cluster: of groups, of their people's keys, of sessions, of the
controller in control."""


def cluster_status(scope: ClusterScope, result: ReconcileResult) -> ReconcileResult:
    old = scope.cluster.status
    state = _state(scope, result)
    if scope.lost_workers().keys() - scope.reported:
        scope.is_recovering = True
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
    status.users.extend(old.users if scope.users is None else scope.users.values())
    status.former_users.extend(old.former_users if scope.users is None else scope.former_users.values())
    status.storage_keys.extend(old.storage_keys if scope.storage_keys is None else scope.storage_keys)
    status.last_uid = max(scope.last_uid, old.last_uid)
    status.login.CopyFrom(old.login)
    _set_login_nodes(status, scope)
    if scope.view is not None:
        status.login.host = scope.view.ssh_host
        status.login.port = scope.login_port
        del status.login.host_keys[:]
        status.login.host_keys.append(public_host_key(scope.view.secrets.ssh_host_key))
    _set_controllers(status, scope)
    _add_nodes(status, scope)
    has_news = scope.is_recovering or state != scope.context.resource.state
    has_news |= status.reconciling != old.reconciling  # as when the controller does not answer
    wakes = frozenset(scope.pools if has_news else ())
    return replace(result.with_status(status, state, _resync_seconds(scope, status)), wakes=wakes)


def _resync_seconds(scope: ClusterScope, status: ClusterStatus) -> float:
    """Return when to look again. The events that matter to an idle cluster wake it: those of its pods, its
    controller's log, and rows of its own and of others."""
    if scope.is_recovering:
        return RECOVERY_SECONDS
    if scope.elastic:
        return POWER_SECONDS
    spec = scope.cluster.spec
    if spec.group_ids or spec.login.drained_nodes or len(scope.controllers) > 1:
        return WATCH_SECONDS
    is_tried_again = (
        scope.closed_addresses or scope.storage_problem or any(each.message for each in status.users)
    )
    return IDLE_RESYNC_SECONDS if has_settled(scope) and not is_tried_again else RESYNC_SECONDS


def _state(scope: ClusterScope, result: ReconcileResult) -> ClusterState:
    if scope.context.resource.deleted_at:
        return ClusterState.DELETING
    if result.error:
        return ClusterState.ERROR
    if result.is_done:
        return ClusterState.READY
    was = StateEnum.Name(scope.cluster.status.state)
    if was == ClusterState.STOPPED:
        return ClusterState.STOPPED
    return ClusterState.READY if was in {ClusterState.READY, ClusterState.UPDATING} else ClusterState.CREATING


def _conditions(scope: ClusterScope, result: ReconcileResult, state: ClusterState) -> list[Condition]:
    message = result.message
    reason = result.error.reason if result.error else ""
    closed: list[Condition] = []
    if scope.closed_addresses:
        text = closed_message(scope.closed_addresses, scope.login_port)
        closed = [Condition(type=ConditionType.LOGIN_ADDRESSES, status="False", message=text)]
    if scope.left_out:
        text = f"{scope.left_out} people in the groups have no user: a cluster has at most {MAX_MEMBERS}"
        closed.append(Condition(type=ConditionType.GROUP_MEMBERS, status="False", message=text))
    if scope.storage_problem:
        text = f"keys for object storage are not delivered: {scope.storage_problem}"
        closed.append(Condition(type=ConditionType.STORAGE_KEYS, status="False", message=text))
    closed += _elastic_conditions(scope)
    expected = scope.workers.keys() - scope.powering_up
    kept = {name: scope.nodes[name].reason for name in sorted(expected) if _is_kept_from_jobs(scope, name)}
    available = [
        name
        for name in expected
        if name in scope.nodes and scope.nodes[name].is_available and name not in kept
    ]
    absent = f", {len(scope.absent)} are powered down" if scope.absent else ""
    absent += "".join(f"; {name}: {reason.removeprefix(FLEET_PREFIX)}" for name, reason in kept.items())
    return [
        Condition(
            type=ConditionType.READY,
            status=str(state in {ClusterState.READY, ClusterState.UPDATING}),
            reason=reason,
            message=message,
        ),
        Condition(
            type=ConditionType.NODES_AVAILABLE,
            status=str(len(available) + _asked_spares(scope, kept.values()) == len(expected)),
            message=f"{len(available)} of {len(expected)} workers can run jobs{absent}",
        ),
        *closed,
    ]


def _asked_spares(scope: ClusterScope, reasons: Iterable[str]) -> int:
    """Return how many workers wait as spares, of those that the spec asks for."""
    asked = sum(each.spare_count for each in scope.cluster.spec.node_sets)
    return min(asked, sum(reason == SPARE_REASON for reason in reasons))


def _is_kept_from_jobs(scope: ClusterScope, name: str) -> bool:
    """Return whether the fleet controller keeps jobs away, as from a new worker until it is verified. A node
    that an administrator has drained is theirs to resume, and counts as available."""
    node = scope.nodes.get(name)
    return node is not None and "DRAIN" in node.states and node.reason.startswith(FLEET_PREFIX)


def _elastic_conditions(scope: ClusterScope) -> list[Condition]:
    """Say why a worker was not started, until one starts, or a host takes new work again."""
    kind = ConditionType.ELASTIC_WORKERS
    if scope.no_host and (scope.absent or scope.powering_up):
        text = f"{scope.no_host}. Jobs wait for workers that are powered down"
        return [Condition(type=kind, status="False", reason=Reason.NO_HOST, message=text)]
    if scope.start_failure:
        return [Condition(type=kind, status="False", message=scope.start_failure)]
    running = [name for name in scope.workers.keys() & scope.elastic if not scope.always_stays(name)]
    if any(name in scope.nodes and scope.nodes[name].is_available for name in running):
        return []
    old = [each for each in scope.cluster.status.conditions if each.type == kind]
    return [each for each in old if each.reason != Reason.NO_HOST]


def _set_controllers(status: ClusterStatus, scope: ClusterScope) -> None:
    """Add both controllers, and a condition that says which is in control."""
    if len(scope.controllers) == 1:
        return
    for name in scope.controllers:
        pod = scope.observation.pod(name)
        row = status.controllers.add(name=name, in_control=name == scope.in_control)
        row.message = "it does not run" if pod is None else pod.message
        if pod is not None:
            row.ready, row.restarts = pod.ready, pod.restart_count
    text = f"{scope.in_control or 'none'} is in control"
    missing = [row.name for row in status.controllers if not row.ready]
    status.conditions.add(
        type=ConditionType.CONTROLLERS,
        status=str(not missing and bool(scope.in_control)),
        message=f"{text}; {' and '.join(missing)} cannot take over" if missing else text,
    )


def _set_login_nodes(status: ClusterStatus, scope: ClusterScope) -> None:
    del status.login.nodes[:]
    for name in scope.login_pods:
        pod = scope.observation.pod(name)
        row = status.login.nodes.add(name=name, message="it does not run" if pod is None else pod.message)
        if pod is not None:
            row.ready, row.restarts = pod.ready, pod.restart_count
        if name in scope.drained_login_nodes:
            row.drained, row.sessions = True, scope.sessions.get(name, -1)


def _add_nodes(status: ClusterStatus, scope: ClusterScope) -> None:
    """Add the nodes. They keep their last known state when this run could not reach Slurm."""
    old = {node.name: node for node in scope.cluster.status.nodes}
    for name, node_set in scope.all_workers.items():
        row = status.nodes.add(name=name, node_set=node_set)
        if name in old:
            row.CopyFrom(old[name])
        if name in scope.absent:
            for gone in ("address", "restarts", "started_at"):
                row.ClearField(gone)
        pod = None if name in scope.absent else scope.observation.pod(name)
        if pod is not None:
            row.address = pod.ip or ""
            row.restarts = pod.restart_count
            if pod.started_at and (name in scope.reported or not row.HasField("started_at")):
                row.started_at.FromDatetime(pod.started_at)
        node = scope.nodes.get(name)
        if node is not None:
            row.slurm_state, row.reason = node.state_text, node.reason
