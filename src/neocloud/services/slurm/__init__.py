"""Managed Slurm: clusters of pods with a shared root, and their batch jobs."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.slurm.api import KINDS, METHODS
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.meter import ClusterMeter
from neocloud.services.slurm.reconcile import ClusterReconciler
from neocloud.services.slurm.resources import BATCH_JOBS


def _reconcilers(dependencies: Dependencies) -> tuple[ClusterReconciler, ...]:
    return (ClusterReconciler.of(dependencies),)


SERVICE = Service(
    name="slurm",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=_reconcilers,
    meters=(ClusterMeter(),),
)

batch_jobs = ClusterJobs.of
"""What `extras[BATCH_JOBS]` is."""

__all__ = ["BATCH_JOBS", "SERVICE", "batch_jobs"]
