"""Managed Slurm: clusters of pods with a shared root, and their batch jobs."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.slurm.api import KINDS, METHODS
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.login_ports import LOGIN_PORTS, LoginPorts
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
login_ports = LoginPorts.of
"""What `extras[LOGIN_PORTS]` is, from the settings."""

__all__ = ["BATCH_JOBS", "LOGIN_PORTS", "SERVICE", "batch_jobs", "login_ports"]
