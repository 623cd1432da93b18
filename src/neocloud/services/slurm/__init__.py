"""Managed Slurm: clusters of pods with a shared root, and their batch jobs."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.slurm.api import KINDS, METHODS
from neocloud.services.slurm.meter import ClusterMeter
from neocloud.services.slurm.reconcile import ClusterReconciler


def _reconcilers(dependencies: Dependencies) -> tuple[ClusterReconciler, ...]:
    return (ClusterReconciler.of(dependencies),)


SERVICE = Service(
    name="slurm",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=_reconcilers,
    meters=(ClusterMeter(),),
)
