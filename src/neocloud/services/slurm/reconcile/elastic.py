"""Elastic node sets: Slurm powers their nodes up and down, and the workers follow.

Slurm's power saving starts nodes for jobs that wait and stops idle ones. Its programs for that do nothing:
each run reads the states of the nodes, starts the worker of a node that is powered up, and removes that of
one that is powered down. Slurm is the only record, so a control plane that is killed misses nothing. While
Slurm does not answer, the states are those of the cluster's status.

While no host takes new work, no worker is started, and nodes that are powered down are drained with the
reason, so that jobs wait for them and Slurm does not try to start them again and again. A node that was being
powered up by then fails once, by Slurm's ResumeTimeout.

Slurm knows the nodes before their first start, or no job could wait for them: `scontrol` creates them,
because Slurm's REST service of this release cannot.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from neocloud.core.reconcile.reconciler import RETRY_SECONDS, RetryLater
from neocloud.engines.base import Engine, EngineError, EngineUnavailable, PodPhase, Reference
from neocloud.engines.manifest import Manifest
from neocloud.messages.neocloud.slurm.v1 import ElasticWorkerSpec
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.reconcile.nodes import REASON_PREFIX
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.render import CONTROLLER_POD, ClusterView, NodeSetView
from neocloud.services.slurm.render.configuration import node_conf
from neocloud.services.slurm.slurm_records import SlurmNode
from neocloud.services.slurm.slurmrestd import SlurmUnreachable
from neocloud.services.slurm.types import (
    ELASTIC_WORKER,
    MODELS_FEATURE,
    USABLE_STATES,
    WORKER_STOPPED,
)

logger = logging.getLogger(__name__)

CONTROLLER_CONTAINER = "controller"
START_FAILED = "ResumeTimeout reached"
"""Slurm's reason for a node that was powered up and did not register in time; it is down and powered down."""
HOST_REASON = REASON_PREFIX + "waits for a host: "
CREATE_SECONDS = 15.0


async def read_power(access: SlurmAccess, scope: ClusterScope) -> None:
    """Set the scope's states of the nodes."""
    if not scope.elastic:
        return
    try:
        async with access.api(scope.cluster_id, scope.observation) as slurm:
            scope.set_power({node.name: node for node in await slurm.nodes()})
    except SlurmUnreachable:
        return


async def remove_powered_down(engine: Engine, scope: ClusterScope) -> None:
    """Remove the workers of nodes that are powered down, and of those that were, and are powered up again."""
    absent = scope.absent
    gone: list[Reference] = []
    for name in scope.elastic:
        pod = scope.observation.pod(name)
        if pod is None:
            continue
        if name in absent:
            gone.append(pod.reference)
        elif name in scope.powering_up and name not in scope.seen_powering_up:
            # Slurm waits for a start after it powered the node up, which this worker's was not.
            gone.append(pod.reference)
            scope.reported.add(name)
    if gone:
        await engine.remove(gone)
        scope.observation = await engine.observe(scope.namespace)


async def start_powered_up(engine: Engine, scope: ClusterScope, pods: Sequence[Manifest]) -> None:
    """Start workers of nodes that are powered up. A node that cannot start holds up nothing else: Slurm
    powers the node down again after its ResumeTimeout, and the job waits.
    """
    if not pods:
        return
    try:
        await engine.apply(pods)
    except EngineUnavailable:
        raise
    except EngineError as error:
        scope.start_failure = f"not started: {error}"


def split(scope: ClusterScope, manifests: Iterable[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """Return what is to be applied first, and the pods of nodes that are being powered up; without the
    workers that wait for a host."""
    first: list[Manifest] = []
    later: list[Manifest] = []
    for each in manifests:
        if each.reference.kind == "Pod" and each.reference.name in scope.waiting:
            continue
        is_later = each.reference.kind == "Pod" and each.reference.name in scope.powering_up
        (later if is_later else first).append(each)
    return first, later


async def keep_nodes(access: SlurmAccess, engine: Engine, scope: ClusterScope, view: ClusterView) -> None:
    """Create nodes that Slurm does not know, power up those that always stay, and give those that failed to
    start another chance. Without a host that takes new work, drain what is powered down; resume it after
    that, also where its set is no longer elastic."""
    await _create_nodes(engine, scope, view)
    known = [scope.nodes[name] for name in scope.all_workers if name in scope.nodes]
    wanted = {node.name: state for node in known if (state := _wanted_state(scope, node))}
    if not wanted:
        return
    async with access.api(scope.cluster_id, scope.observation) as slurm:
        for name, state in wanted.items():
            reason = f"{HOST_REASON}{scope.no_host}" if state == "DRAIN" else ""
            await slurm.set_node_state(name, state, reason)


def _wanted_state(scope: ClusterScope, node: SlurmNode) -> str:
    """Return the state that Slurm is to give a node; "" for none."""
    is_absent = node.name in scope.absent
    if is_absent and scope.no_host:
        return "" if "DRAIN" in node.states else "DRAIN"
    if "DRAIN" in node.states and node.reason.startswith(HOST_REASON):
        return "RESUME"
    if is_absent and "DOWN" in node.states and START_FAILED in node.reason:
        return "RESUME"
    stays = is_absent and scope.always_stays(node.name)
    return "POWER_UP" if stays and "POWERED_DOWN" in node.states else ""


async def _create_nodes(engine: Engine, scope: ClusterScope, view: ClusterView) -> None:
    unknown = [name for name in scope.absent if name not in scope.nodes]
    for node_set in view.node_sets:
        names = [name for name in unknown if scope.elastic[name] == node_set.name]
        if names:
            await _create(engine, scope, node_set, names, view)


async def _create(
    engine: Engine, scope: ClusterScope, node_set: NodeSetView, names: Sequence[str], view: ClusterView
) -> None:
    features = (MODELS_FEATURE,) if view.models_folder else ()
    conf = node_conf(node_set, *features).split()
    command = ["scontrol", "create", f"NodeName={','.join(names)}", "State=CLOUD", *conf]
    result = await engine.exec(
        Reference("Pod", scope.namespace, scope.in_control or CONTROLLER_POD),
        command,
        container=CONTROLLER_CONTAINER,
        timeout_seconds=CREATE_SECONDS,
    )
    if result.exit_code:
        said = (result.stderr or result.stdout).decode(errors="replace").strip()[-300:]
        raise RetryLater(f"Slurm did not create {', '.join(names)}: {said}", delay_seconds=RETRY_SECONDS)
    logger.info("Slurm: nodes created: %s", ", ".join(names))


async def charge_workers(scope: ClusterScope) -> None:
    """Keep a resource for each elastic worker that runs: its history is what is charged."""
    project = scope.cluster.metadata.parent_id
    known = {
        row.name: row
        for row in await scope.context.list(ELASTIC_WORKER, project)
        if row.owner_id == scope.cluster_id and row.deleted_at is None
    }
    wanted = _charged(scope)
    for name, row in known.items():
        if name not in wanted or row.state == WORKER_STOPPED:
            await scope.context.delete_child(row.id)
    for name, spec in wanted.items():
        await scope.context.ensure_child(ELASTIC_WORKER, name=name, parent_id=project, spec=spec, labels={})


def _charged(scope: ClusterScope) -> Mapping[str, ElasticWorkerSpec]:
    if scope.state not in USABLE_STATES:
        return {}
    shapes = {each.name: (each.platform, each.preset) for each in scope.cluster.spec.node_sets}
    found: dict[str, ElasticWorkerSpec] = {}
    for name, node_set in scope.elastic.items():
        pod = scope.observation.pod(name)
        if name in scope.absent or pod is None or pod.phase is not PodPhase.RUNNING:
            continue
        platform, preset = shapes[node_set]
        found[f"{scope.cluster.metadata.name}-{name}"] = ElasticWorkerSpec(
            cluster_id=scope.cluster_id, platform=platform, preset=preset
        )
    return found
