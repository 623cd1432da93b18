"""Fleet: health of nodes; watches, drains, repairs, verifies and replaces the workers of Slurm clusters."""

from collections.abc import Iterable

from neocloud.core.kind import Kind
from neocloud.core.service import Dependencies, Service
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.core.usage import CreditSource
from neocloud.services.compute.public import HOST_POOL, MAINTENANCE
from neocloud.services.fleet.api import break_fix, incidents, verdicts
from neocloud.services.fleet.api.descriptions import METHODS as DESCRIPTION_METHODS
from neocloud.services.fleet.api.health_checks import METHODS as HEALTH_CHECK_METHODS
from neocloud.services.fleet.api.job_events import LoggedNodeHistory
from neocloud.services.fleet.api.nodes import METHODS
from neocloud.services.fleet.checks.active_checks import ActiveChecks
from neocloud.services.fleet.checks.records import CheckRecords
from neocloud.services.fleet.checks.runs import CheckRuns
from neocloud.services.fleet.credits import FleetCredits, PoolMeter
from neocloud.services.fleet.logs.node_logs import NodeLogs
from neocloud.services.fleet.metrics import metrics
from neocloud.services.fleet.node_agents import NodeAgents
from neocloud.services.fleet.public import BackgroundSources, HostNodes, NoHosts, VerdictSources
from neocloud.services.fleet.reconcile import PoolReconciler
from neocloud.services.fleet.reconcile.hosts import HostPoolReconciler, ensure_host_pool
from neocloud.services.fleet.rules import MaintenanceWindowRules, window_view
from neocloud.services.fleet.sources import EngineAndSlurm, Measurements, PoolWakes
from neocloud.services.fleet.types import (
    HOST_POOL_ID_PREFIX,
    MAINTENANCE_WINDOW,
    MAINTENANCE_WINDOW_ID_PREFIX,
    NODE_POOL_ID_PREFIX,
    PoolState,
)
from neocloud.services.slurm.public import NODE_POOL, NodeHistory, WorkerAgents, WorkerNodes

KINDS = (
    Kind(
        message=NODE_POOL,
        rpc="neocloud.fleet.v1.NodeService",
        id_prefix=NODE_POOL_ID_PREFIX,
        permission="fleet.nodePools",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset(),
        initial_state=PoolState.BLIND,
        deleting_state=PoolState.DELETING,
        stopped_state=PoolState.STOPPED,
        is_reconciled=True,
    ),
    Kind(
        message=HOST_POOL,
        rpc="neocloud.fleet.v1.NodeService",
        id_prefix=HOST_POOL_ID_PREFIX,
        permission="fleet.hostPools",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset(),
        initial_state=PoolState.BLIND,
        deleting_state=PoolState.DELETING,
        is_reconciled=True,
    ),
    Kind(
        message=MAINTENANCE_WINDOW,
        rpc="neocloud.fleet.v1.MaintenanceWindowService",
        id_prefix=MAINTENANCE_WINDOW_ID_PREFIX,
        permission="fleet.maintenanceWindows",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "List", "Delete"}),
        rules=MaintenanceWindowRules(),
        initial_state="ANNOUNCED",
        view=window_view,
    ),
)


def _sources(dependencies: Dependencies) -> VerdictSources:
    provided, clock = dependencies.provided, dependencies.clock
    changed = provided.get(PoolWakes).wake
    agents = NodeAgents(provided.get(WorkerAgents), clock, changed=changed)
    measurements = Measurements(provided.get(WorkerNodes), clock, changed)
    return VerdictSources((EngineAndSlurm(), measurements, agents))


def all_pools(tx: Transaction, window: Resource) -> Iterable[str]:
    """Return the ids of all pools: maintenance of a host concerns workers on it."""
    return [row.id for kind in (NODE_POOL, HOST_POOL) for row in tx.list(kind)[0]]


def _background(dependencies: Dependencies) -> BackgroundSources:
    return BackgroundSources((ActiveChecks.of(dependencies),))


SERVICE = Service(
    name="fleet",
    kinds=KINDS,
    methods=(
        *METHODS,
        *DESCRIPTION_METHODS,
        *HEALTH_CHECK_METHODS,
        *break_fix.METHODS,
        *verdicts.METHODS,
        *incidents.METHODS,
    ),
    reconcilers=lambda dependencies: (PoolReconciler(dependencies), HostPoolReconciler(dependencies)),
    meters=(PoolMeter(),),
    metrics=metrics,
    provides={
        CreditSource: FleetCredits.of,
        NodeLogs: lambda dependencies: NodeLogs(dependencies.store),
        CheckRecords: CheckRecords.of,
        CheckRuns: lambda dependencies: CheckRuns(dependencies.store),
        HostNodes: lambda dependencies: NoHosts(),
        NodeHistory: LoggedNodeHistory.of,
        VerdictSources: _sources,
        BackgroundSources: _background,
        PoolWakes: PoolWakes.of,
    },
    wakes={MAINTENANCE_WINDOW: all_pools, MAINTENANCE: all_pools},
)

__all__ = ["SERVICE", "HostNodes", "ensure_host_pool"]
