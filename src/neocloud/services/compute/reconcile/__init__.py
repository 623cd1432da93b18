"""How the nouns of compute become true: volumes, copies of them, and machines."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.service import Dependencies
from neocloud.services.compute.reconcile.disk import DiskReconciler
from neocloud.services.compute.reconcile.filesystem import FilesystemReconciler
from neocloud.services.compute.reconcile.image import ImageReconciler
from neocloud.services.compute.reconcile.machine import InstanceReconciler
from neocloud.services.compute.reconcile.snapshot import SnapshotReconciler

__all__ = [
    "DiskReconciler",
    "FilesystemReconciler",
    "ImageReconciler",
    "InstanceReconciler",
    "SnapshotReconciler",
    "reconcilers",
]


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler]:
    engine, store = dependencies.engine, dependencies.store
    return (
        FilesystemReconciler(engine, store),
        DiskReconciler(engine, store),
        SnapshotReconciler(engine, store),
        ImageReconciler(engine, store),
        InstanceReconciler.of(dependencies),
    )
