"""The nodes of a cluster: their addresses on a subnet, and workers in Slurm: report lost ones, resume
returned ones, retire surplus ones.

A cluster on a subnet has an allocation for each node, and a security group that allows traffic between nodes,
ssh from anywhere, and requests of the control plane, which come from the subnet's gateway. Users may add
rules of their own to the group. Addresses of removed nodes are released.

Every node state set here carries a reason that starts with REASON_PREFIX, and only nodes with such a reason,
or with DUPLICATE_JOB_REASON, are ever resumed: what an administrator drained stays drained.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from neocloud.core.contract import to_datetime
from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Engine
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import RuleProtocol, SecurityRuleSpec, SubnetStatus
from neocloud.services.compute.public import MaintenanceState, of_host
from neocloud.services.slurm.public import LOST_PREFIX
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.render import REST_PORT, ROLE_LABEL, SSH_PORT, WORKER_ROLE
from neocloud.services.slurm.slurm_records import SlurmJob, SlurmNode
from neocloud.services.slurm.slurmrestd import SlurmApi
from neocloud.services.slurm.types import Reason
from neocloud.services.vpc.types import (
    ALLOCATION,
    ANYWHERE,
    allow,
    interface_of,
    own_address,
    own_security_group,
    private_address,
    subnet_blocks,
)


async def find_interfaces(scope: ClusterScope) -> None:
    """Set the scope's interfaces, by pod name; none for a cluster on a network of its own."""
    subnet_id = scope.cluster.spec.subnet_id
    if not subnet_id:
        return
    subnet = await scope.context.get(subnet_id)
    if subnet is None:
        raise Failed(
            Reason.SUBNET_GONE, f"Subnet {subnet_id} is gone; delete the cluster and create a new one."
        )
    metadata = scope.cluster.metadata
    gateways = [f"{block.gateway}/32" for block in subnet_blocks(SubnetStatus.FromString(subnet.status))]
    group = await own_security_group(
        scope.context,
        subnet,
        metadata.parent_id,
        f"{metadata.name}-nodes",
        lambda group_id: _rules(group_id, gateways),
    )
    for pod in scope.pod_names:
        name = _allocation_name(scope, pod)
        private = await own_address(scope.context, metadata.parent_id, name, private_address(subnet_id))
        mac = mac_of(private.id)
        scope.interfaces[pod] = interface_of(subnet, private, None, mac=mac, security_groups=[group.id])


async def release_addresses(scope: ClusterScope) -> None:
    """Delete the allocations of nodes that are not in the spec and whose pods are gone."""
    if not scope.cluster.spec.subnet_id:
        return
    present = {pod.reference.name for pod in scope.observation.pods}
    kept = {_allocation_name(scope, name) for name in {*scope.pod_names, *present}}
    for row in await scope.context.list(ALLOCATION, scope.cluster.metadata.parent_id):
        if row.owner_id == scope.cluster_id and row.name not in kept and row.deleted_at is None:
            await scope.context.delete_child(row.id)


def _allocation_name(scope: ClusterScope, pod: str) -> str:
    return f"{scope.cluster.metadata.name}-{pod}"


def _rules(group_id: str, gateways: Iterable[str]) -> Mapping[str, SecurityRuleSpec]:
    """Return the rules by name. A rule without sources or destinations allows any."""
    among, out, sign_in, control = (allow() for _ in range(4))
    among.ingress.source_security_group_id = group_id
    out.egress.destination_cidrs.append(ANYWHERE)
    sign_in.protocol = control.protocol = RuleProtocol.Value("TCP")
    sign_in.ingress.source_cidrs.append(ANYWHERE)
    sign_in.ingress.destination_ports.append(SSH_PORT)
    control.ingress.source_cidrs.extend(gateways)
    control.ingress.destination_ports.append(REST_PORT)
    return {"nodes": among, "out": out, "sign-in": sign_in, "control-plane": control}


REASON_PREFIX = "[neocloud] "
LOST_REASON = REASON_PREFIX + "lost: "
MAINTENANCE_REASON = REASON_PREFIX + "maintenance of the host at "
RETIRED_REASON = REASON_PREFIX + "retired: the node set was made smaller"
DUPLICATE_JOB_REASON = "Duplicate jobid"
"""slurmctld drains a node with it that refuses a job because it runs it already: a controller that was killed
before it had saved the start of a job starts the job again. Nothing in Slurm resumes the node."""
SETTLED_AFTER = timedelta(minutes=5)
"""Long after the last job of a lost node or controller has been requeued and started."""
RETIRE_POLL_SECONDS = 1.0
_ON_NODES = frozenset({"RUNNING", "SUSPENDED"})
"""States of jobs that have processes on their nodes."""


async def report_lost(slurm: SlurmApi, scope: ClusterScope, lost: Mapping[str, str]) -> None:
    """Set lost nodes DOWN: Slurm requeues their jobs immediately instead of after SlurmdTimeout. Where the
    fleet controller watches them, they are drained before: they return to jobs once they are verified."""
    known = {node.name: node for node in await slurm.nodes()}
    for name, reason in lost.items():
        if name in known:
            is_watched = scope.cluster.spec.auto_repair and name not in scope.elastic
            text = _drain_reason(known[name]) or (LOST_PREFIX if is_watched else LOST_REASON) + reason
            if is_watched and "DRAIN" not in known[name].states:
                await slurm.set_node_state(name, "DRAIN", text)
            await slurm.set_node_state(name, "DOWN", text)
        scope.reported.add(name)


def _drain_reason(node: SlurmNode) -> str:
    """Return why an administrator, or maintenance of the host, drained this node; "" when neither did."""
    is_ours = node.reason.startswith(REASON_PREFIX) and not node.reason.startswith(MAINTENANCE_REASON)
    return node.reason if "DRAIN" in node.states and not is_ours else ""


def maintenance_changes(scope: ClusterScope, start: datetime | None) -> list[tuple[str, str, str]]:
    """Return name, new state and reason of the workers that are to be drained for maintenance of the host
    that starts then; without any, of those that it had drained and that are to be resumed."""
    known = [scope.nodes[name] for name in scope.all_workers if name in scope.nodes]
    if start is None:
        drained = [node for node in known if node.reason.startswith(MAINTENANCE_REASON)]
        return [(node.name, "RESUME", "") for node in drained]
    reason = f"{MAINTENANCE_REASON}{start:%Y-%m-%d %H:%M} UTC"
    return [(node.name, "DRAIN", reason) for node in known if "DRAIN" not in node.states]


def maintenance_start(rows: Iterable[Resource], now: datetime) -> datetime | None:
    """Return the start of maintenance of the host for which workers are drained now; None without one."""
    known = filter(None, (of_host(row, now) for row in rows))
    return next(
        (to_datetime(spec.start_at) for spec, state in known if state is not MaintenanceState.ANNOUNCED), None
    )


def to_resume(scope: ClusterScope) -> list[SlurmNode]:
    """Return the nodes that we set DOWN and whose slurmd has registered again since, and those that Slurm
    drained for a job that they already ran."""
    known = [scope.nodes[name] for name in scope.workers if name in scope.nodes]
    return [node for node in known if _is_duplicate(node) or _is_back(scope, node)]


def _is_duplicate(node: SlurmNode) -> bool:
    return node.reason == DUPLICATE_JOB_REASON and "DRAIN" in node.states


def _is_back(scope: ClusterScope, node: SlurmNode) -> bool:
    return node.reason.startswith((LOST_REASON, RETIRED_REASON)) and _has_registered(scope, node)


async def resume_returned(slurm: SlurmApi, scope: ClusterScope) -> None:
    """Read the nodes again and resume those that are to be, of which nothing runs on those with a duplicate
    job any more."""
    scope.nodes = {node.name: node for node in await slurm.nodes()}
    for node in to_resume(scope):
        if not (_is_duplicate(node) and node.is_busy):
            await slurm.set_node_state(node.name, "RESUME", "")
        scope.is_recovering = True


def _has_registered(scope: ClusterScope, node: SlurmNode) -> bool:
    """Return whether Slurm knows the slurmd of the pod that runs now, not of an earlier one."""
    pod = scope.observation.pod(node.name)
    if pod is None or pod.started_at is None:
        return False
    # Slurm's start times are in whole seconds, rounded down.
    return node.slurmd_started_at >= pod.started_at.replace(microsecond=0)


def missing(scope: ClusterScope) -> list[str]:
    """Return the desired workers that cannot run jobs yet. A drained node counts as available. One that a job
    waits for is not waited for here."""
    return [
        name
        for name in scope.workers
        if (name not in scope.powering_up or scope.always_stays(name))
        and not (name in scope.nodes and scope.nodes[name].is_available)
    ]


def has_surplus(scope: ClusterScope) -> bool:
    """Return whether a pod of a worker, or a node in Slurm, is no longer in the spec."""
    has_more = not scope.nodes.keys() <= scope.all_workers.keys()
    return has_more or bool(scope.surplus_pods(ROLE_LABEL, WORKER_ROLE))


async def retire(slurm: SlurmApi, engine: Engine, scope: ClusterScope) -> None:
    """Drain surplus workers, wait for their jobs, remove their pods and their records in Slurm (SLURM-11)."""
    surplus = {pod.reference.name: pod for pod in scope.surplus_pods(ROLE_LABEL, WORKER_ROLE)}
    stale = [name for name in scope.nodes if name not in scope.all_workers and name not in surplus]
    busy: list[str] = []
    for name, pod in surplus.items():
        node = scope.nodes.get(name)
        if node and "DRAIN" not in node.states:
            await slurm.set_node_state(name, "DRAIN", RETIRED_REASON)
        if node and node.is_busy:
            busy.append(name)
            continue
        await engine.remove([pod.reference])
        if node:
            await slurm.delete_node(name)
    for name in stale:
        if scope.nodes[name].is_busy:  # it was being powered up for a job, which waits again
            await slurm.set_node_state(name, "DOWN", RETIRED_REASON)
            busy.append(name)
        else:
            await slurm.delete_node(name)
    if busy:
        raise RetryLater(
            f"{', '.join(busy)}: draining, a job still runs (cancel it to continue)",
            delay_seconds=RETIRE_POLL_SECONDS,
        )


def has_settled(scope: ClusterScope) -> bool:
    """Return whether all pods have run for so long that no job waits because one of them was lost."""
    pods = [scope.observation.pod(name) for name in (*scope.controllers, *scope.workers)]
    since = scope.context.now - SETTLED_AFTER
    return all(pod is not None and pod.started_at is not None and pod.started_at < since for pod in pods)


def lost_under_jobs(scope: ClusterScope, jobs: Iterable[SlurmJob]) -> dict[str, str]:
    """Return workers whose pod started after a job that Slurm believes to run there, with the reason.

    Observations cannot see each restart: a worker may be lost again before the run that reported it ends.
    """
    lost: dict[str, str] = {}
    for job in jobs:
        if job.state not in _ON_NODES or job.started_at is None:
            continue
        for name in job.nodes:
            pod = scope.observation.pod(name)
            if name not in scope.workers or pod is None or pod.started_at is None:
                continue
            if job.is_configuring and name in scope.elastic:
                continue  # the pod was started for it
            # Slurm's times are in whole seconds, rounded down.
            if job.started_at < pod.started_at.replace(microsecond=0):
                lost[name] = f"its pod was restarted under job {job.id}"
    return lost
