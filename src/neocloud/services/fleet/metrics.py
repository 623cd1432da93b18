"""Metrics of node health for `/metrics`: phases, drains, incidents, verdicts, certificates, spares.

Computed from the folds that the reconcilers keep in memory, and from what agents last said of GPUs. A sample,
a reason or a name of an operator is not a label: labels are ids, names of nodes and checks, phases, kinds of
owners, and models of a list.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from neocloud.core import wire
from neocloud.core.metrics import PROJECT_LABEL, gauge
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.nodes.events import Phase
from neocloud.fleet.nodes.gpu_use import MEASURES, GpuUse, model_label
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import OPERATOR_PREFIX
from neocloud.messages.neocloud.fleet.v1 import NodePool
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs, PoolLog
from neocloud.services.fleet.public import GpuUseSource, VerdictSources
from neocloud.services.fleet.types import PoolState, plain
from neocloud.services.slurm.public import NODE_POOL

MOST_CHECKS = 200
"""Names of checks of a pool; those of a source that makes up more are left out."""
MAX_CHECK_CHARS = 64
_POOL = (PROJECT_LABEL, "cluster", "cluster_name", "node_set")
_NODE = (PROJECT_LABEL, "cluster", "cluster_name", "node")


class _Families:
    def __init__(self) -> None:
        self.nodes = gauge("neocloud_fleet_nodes", "Nodes in each phase.", (*_POOL, "phase"))
        self.wanted = gauge("neocloud_fleet_wanted_nodes", "Nodes that should be in service.", _POOL)
        self.spares = gauge("neocloud_fleet_ready_spares", "Verified nodes without work.", _POOL)
        self.blind = gauge("neocloud_fleet_blind", "Whether nothing is seen of the nodes.", _POOL)
        self.held = gauge("neocloud_fleet_held_nodes", "Nodes for which something due is not done.", _POOL)
        self.checks = gauge(
            "neocloud_fleet_checks", "Nodes by the last answer of a check.", (*_POOL, "check", "status")
        )
        self.drains = gauge("neocloud_fleet_drains", "Drains in force, by kind of owner.", (*_POOL, "owner"))
        self.open = gauge("neocloud_fleet_open_incidents", "Nodes that the controller drained.", _POOL)
        self.incidents = CounterMetricFamily(
            "neocloud_fleet_incidents", "Drains by the controller since the pool was made.", labels=_POOL
        )
        self.phase = gauge("neocloud_fleet_node_phase", "1 for the phase of a node.", (*_NODE, "phase"))
        self.job = gauge("neocloud_fleet_node_job", "1 for the job that a node runs.", (*_NODE, "job"))
        self.schedulable = gauge("neocloud_fleet_node_schedulable", "Whether new work may start.", _NODE)
        self.faults = gauge("neocloud_fleet_node_faults", "Checks that fail on a node.", _NODE)
        self.issued = gauge(
            "neocloud_fleet_certificate_issued_timestamp_seconds",
            "When it last passed its tests.",
            _NODE,
        )
        self.until = gauge(
            "neocloud_fleet_certificate_ends_timestamp_seconds", "Until when that counts.", _NODE
        )
        self.simulated = gauge(
            "neocloud_fleet_node_gpus_simulated", "Whether series of its GPUs are not real.", _NODE
        )
        self.gpus = {
            name: gauge(each.series, each.description, (*_NODE, "gpu", "modelName"))
            for name, each in MEASURES.items()
        }

    def __iter__(self) -> Iterator[Metric]:
        for each in vars(self).values():
            yield from each.values() if isinstance(each, dict) else (each,)


async def metrics(dependencies: Dependencies) -> Iterable[Metric]:
    def read(tx: Transaction) -> list[tuple[NodePool, str, str]]:
        found: list[tuple[NodePool, str, str]] = []
        for row in tx.list(NODE_POOL)[0]:
            pool = wire.message(row, NodePool)
            cluster = tx.get(pool.spec.cluster_id)
            found.append((pool, row.state, cluster.name if cluster else ""))
        return found

    families = _Families()
    sources = [each for each in dependencies.provided.get(VerdictSources) if isinstance(each, GpuUseSource)]
    logs = dependencies.provided.get(NodeLogs)
    now = dependencies.clock.now().timestamp()
    for pool, state, cluster_name in await dependencies.store.read(read):
        labels = (pool.metadata.parent_id, pool.spec.cluster_id, cluster_name)
        of_pool = (*labels, pool.spec.node_set)
        try:
            log = await logs.read(pool.metadata.id, pool.spec.wanted)
        except BrokenLog:
            families.blind.add_metric(of_pool, 1)
            continue
        families.blind.add_metric(of_pool, state == PoolState.BLIND)
        families.wanted.add_metric(of_pool, pool.spec.wanted)
        families.held.add_metric(of_pool, len(pool.status.held))
        _add_pool(families, of_pool, log)
        for node in log.fleet.nodes.values():
            _add_node(families, (*labels, node.node), node, now)
            for source in sources:
                _add_gpus(families, (*labels, node.node), *source.gpu_use(labels[1], node.node, now))
    return families


def _add_pool(families: _Families, labels: tuple[str, ...], log: PoolLog) -> None:
    nodes = log.fleet.nodes.values()
    phases = Counter(node.phase for node in nodes)
    for phase in Phase:
        families.nodes.add_metric((*labels, phase.value), phases[phase])
    free = (node for node in nodes if node.phase is Phase.READY_SPARE and node.reserved_for is None)
    families.spares.add_metric(labels, sum(1 for _ in free))
    owners = Counter(_kind_of(hold.owner) for node in nodes for hold in node.holds)
    _add_counted(families.drains, labels, {(owner,): count for owner, count in owners.items()})
    families.open.add_metric(labels, sum(node.is_drained_by_us for node in nodes))
    families.incidents.add_metric(labels, log.incidents.count)
    answers = Counter(
        (plain(check, MAX_CHECK_CHARS), status.value)
        for (node, check), (status, boot) in log.answers.items()
        if node in log.fleet.nodes and log.fleet.nodes[node].boot == boot
    )
    known = sorted({check for check, _ in answers})[:MOST_CHECKS]
    _add_counted(
        families.checks, labels, {key: count for key, count in answers.items() if key[0] in set(known)}
    )


def _add_counted(
    family: GaugeMetricFamily, labels: tuple[str, ...], counts: dict[tuple[str, ...], int]
) -> None:
    for more, count in sorted(counts.items()):
        family.add_metric((*labels, *more), count)


def _kind_of(owner: str) -> str:
    return "operator" if owner.startswith(OPERATOR_PREFIX) else owner


def _add_node(families: _Families, labels: tuple[str, ...], node: NodeState, now: float) -> None:
    families.phase.add_metric((*labels, node.phase.value), 1)
    if node.job:
        families.job.add_metric((*labels, node.job), 1)
    families.schedulable.add_metric(labels, node.is_schedulable(now))
    families.faults.add_metric(labels, len(node.faults))
    if node.certificate is not None and math.isfinite(node.certificate.issued_at):
        families.issued.add_metric(labels, node.certificate.issued_at)
        families.until.add_metric(labels, node.certificate.valid_until)


def _add_gpus(
    families: _Families, labels: tuple[str, ...], gpus: Sequence[GpuUse], is_simulated: bool
) -> None:
    """Add an agent's numbers to the series; no text of it but a known model becomes part of one."""
    if gpus:
        families.simulated.add_metric(labels, is_simulated)
    for gpu in gpus:
        for name, value in gpu.values.items():
            families.gpus[name].add_metric((*labels, str(gpu.index), model_label(gpu.model)), value)
