"""Managed Slurm: clusters of pods with a shared root, and their batch jobs.

A cluster is charged for its nodes by preset, from the moment it is ready until its deletion is requested.
A worker of an elastic node set is a resource of its own, and charged while it is there.
Controller, accounting and login nodes are free. The shared root is a compute Filesystem of its own and
metered there.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, ElasticWorkerSpec
from neocloud.services.compute.public import preset
from neocloud.services.compute.types import FILESYSTEM
from neocloud.services.iam.types import SERVICE_ACCOUNT
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.api import METHODS, backup, rest, storage_access
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.controller_logs import ControllerLogs
from neocloud.services.slurm.metrics import Queues, metrics
from neocloud.services.slurm.public import WorkerAgents, WorkerNodes, demand
from neocloud.services.slurm.reconcile import ClusterReconciler
from neocloud.services.slurm.rules import (
    CAPACITY,
    ClusterRules,
    LoginPorts,
    clusters_of_account,
    clusters_with_filesystem,
)
from neocloud.services.slurm.slurmrestd import SlurmRest
from neocloud.services.slurm.types import (
    CHARGED_STATES,
    CLUSTER,
    CLUSTER_ID_PREFIX,
    ELASTIC_WORKER,
    ELASTIC_WORKER_ID_PREFIX,
    WORKER_STOPPED,
    WORKER_UP,
    BatchJobs,
    ClusterState,
)
from neocloud.services.slurm.worker_agents import PodAgents
from neocloud.services.slurm.worker_nodes import ClusterWorkers


class ClusterMeter:
    kinds: tuple[str, ...] = (CLUSTER,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state not in CHARGED_STATES:
                continue
            for sku, units in demand(ClusterSpec.FromString(stretch.entry.spec)).items():
                yield UsageRecord(
                    resource_id=stretch.entry.resource_id,
                    resource_kind=stretch.entry.kind,
                    resource_name=stretch.entry.name,
                    parent_id=stretch.entry.parent_id,
                    sku=sku,
                    units=units,
                    start=stretch.start,
                    end=stretch.end,
                )


class ElasticWorkerMeter:
    kinds: tuple[str, ...] = (ELASTIC_WORKER,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state != WORKER_UP:
                continue
            spec = ElasticWorkerSpec.FromString(stretch.entry.spec)
            for sku, units in preset(spec.platform, spec.preset).skus().items():
                yield stretch.record(sku=sku, units=units, owner_id=spec.cluster_id)


KINDS = (
    Kind(
        message=CLUSTER,
        rpc="neocloud.slurm.v1.ClusterService",
        id_prefix=CLUSTER_ID_PREFIX,
        permission="slurm.clusters",
        parent_kinds=("nebius.iam.v1.Container",),
        rules=ClusterRules(),
        initial_state=ClusterState.CREATING,
        deleting_state=ClusterState.DELETING,
        stopped_state=ClusterState.STOPPED,
        is_reconciled=True,
        runs_others=True,
    ),
    Kind(
        message=ELASTIC_WORKER,
        rpc="neocloud.slurm.v1.ClusterService",
        id_prefix=ELASTIC_WORKER_ID_PREFIX,
        permission="slurm.elasticWorkers",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset(),
        initial_state=WORKER_UP,
        stopped_state=WORKER_STOPPED,
    ),
)

SERVICE = Service(
    name="slurm",
    kinds=KINDS,
    methods=(*METHODS, *rest.METHODS, *backup.METHODS, *storage_access.METHODS),
    http_routes=rest.ROUTES,
    reconcilers=lambda dependencies: (ClusterReconciler(dependencies),),
    meters=(ClusterMeter(), ElasticWorkerMeter()),
    capacity=CAPACITY,
    metrics=metrics,
    provides={
        BatchJobs: ClusterJobs.of,
        Queues: Queues.of,
        LoginPorts: lambda dependencies: LoginPorts.of(dependencies.settings),
        SlurmFactory: lambda dependencies: SlurmRest,
        WorkerNodes: ClusterWorkers.of,
        WorkerAgents: PodAgents.of,
        ControllerLogs: ControllerLogs.of,
    },
    wakes={FILESYSTEM: clusters_with_filesystem, SERVICE_ACCOUNT: clusters_of_account},
)

__all__ = ["SERVICE"]
