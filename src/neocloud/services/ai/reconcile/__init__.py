"""How endpoints and jobs become true: addresses, filesystems, one pod each."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.service import Dependencies
from neocloud.services.ai.reconcile.endpoint import EndpointReconciler
from neocloud.services.ai.reconcile.job import JobReconciler


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler]:
    engine, store = dependencies.engine, dependencies.store
    return (EndpointReconciler(engine, store), JobReconciler(engine, store))


__all__ = ["EndpointReconciler", "JobReconciler", "reconcilers"]
