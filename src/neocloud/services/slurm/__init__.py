"""Managed Slurm: clusters of pods with a shared root, and their batch jobs."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.api import METHODS
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.meter import ClusterMeter
from neocloud.services.slurm.public import BatchJobs
from neocloud.services.slurm.reconcile import ClusterReconciler
from neocloud.services.slurm.rules import CAPACITY, ClusterRules, LoginPorts
from neocloud.services.slurm.slurmrestd import SlurmRest
from neocloud.services.slurm.types import CLUSTER, CLUSTER_ID_PREFIX, State

KINDS = (
    Kind(
        message=CLUSTER,
        rpc="neocloud.slurm.v1.ClusterService",
        id_prefix=CLUSTER_ID_PREFIX,
        permission="slurm.clusters",
        parent_kinds=("nebius.iam.v1.Container",),
        rules=ClusterRules(),
        initial_state=State.CREATING,
        deleting_state=State.DELETING,
        stopped_state=State.STOPPED,
        is_reconciled=True,
    ),
)

SERVICE = Service(
    name="slurm",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=lambda dependencies: (ClusterReconciler(dependencies),),
    meters=(ClusterMeter(),),
    capacity=CAPACITY,
    provides={
        BatchJobs: ClusterJobs.of,
        LoginPorts: lambda dependencies: LoginPorts.of(dependencies.settings),
        SlurmFactory: lambda dependencies: SlurmRest,
    },
)

__all__ = ["SERVICE"]
