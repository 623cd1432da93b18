"""Reconcile endpoints and jobs: addresses, filesystems, one pod each."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.service import Dependencies
from neocloud.services.ai.reconcile.job import JobReconciler
from neocloud.services.ai.reconcile.scope import WorkloadScope
from neocloud.services.ai.reconcile.workload import EndpointReconciler


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler[WorkloadScope]]:
    return (EndpointReconciler(dependencies), JobReconciler(dependencies))


__all__ = ["EndpointReconciler", "JobReconciler", "reconcilers"]
