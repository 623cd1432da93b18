"""Managed Slurm: clusters of pods with a shared root, and their batch jobs."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.api import KINDS, METHODS
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.login_ports import LoginPorts
from neocloud.services.slurm.meter import ClusterMeter
from neocloud.services.slurm.public import BatchJobs
from neocloud.services.slurm.reconcile import ClusterReconciler
from neocloud.services.slurm.rules import CAPACITY
from neocloud.services.slurm.slurmrestd import SlurmRest


def _reconcilers(dependencies: Dependencies) -> tuple[ClusterReconciler, ...]:
    return (ClusterReconciler.of(dependencies),)


SERVICE = Service(
    name="slurm",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=_reconcilers,
    meters=(ClusterMeter(),),
    capacity=CAPACITY,
    provides={
        BatchJobs: ClusterJobs.of,
        LoginPorts: lambda dependencies: LoginPorts.of(dependencies.settings),
        SlurmFactory: lambda dependencies: SlurmRest,
    },
)

__all__ = ["SERVICE"]
