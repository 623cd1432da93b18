"""Fleet: health of nodes; watches, drains, repairs, verifies and replaces the workers of Slurm clusters."""

from neocloud.core.kind import Kind
from neocloud.core.service import Dependencies, Service
from neocloud.services.fleet.api import METHODS
from neocloud.services.fleet.metrics import metrics
from neocloud.services.fleet.node_logs import NodeLogs
from neocloud.services.fleet.public import VerdictSources
from neocloud.services.fleet.reconcile import PoolReconciler
from neocloud.services.fleet.sources import EngineAndSlurm, Measurements
from neocloud.services.fleet.types import NODE_POOL_ID_PREFIX, State
from neocloud.services.slurm.public import NODE_POOL, WorkerNodes

KINDS = (
    Kind(
        message=NODE_POOL,
        rpc="neocloud.fleet.v1.NodeService",
        id_prefix=NODE_POOL_ID_PREFIX,
        permission="fleet.nodePools",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset(),
        initial_state=State.BLIND,
        deleting_state=State.DELETING,
        stopped_state=State.STOPPED,
        is_reconciled=True,
    ),
)


def _sources(dependencies: Dependencies) -> VerdictSources:
    workers = dependencies.provided.get(WorkerNodes)
    return VerdictSources((EngineAndSlurm(), Measurements(workers, dependencies.clock)))


SERVICE = Service(
    name="fleet",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=lambda dependencies: (PoolReconciler(dependencies),),
    metrics=metrics,
    provides={
        NodeLogs: lambda dependencies: NodeLogs(dependencies.store),
        VerdictSources: _sources,
    },
)
