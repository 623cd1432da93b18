"""Reconcilers of compute: volumes, copies of them, and machines."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.service import Dependencies
from neocloud.services.compute.reconcile.copies import ImageReconciler, SnapshotReconciler
from neocloud.services.compute.reconcile.machine import InstanceReconciler
from neocloud.services.compute.reconcile.volumes import DiskReconciler, FilesystemReconciler

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
        InstanceReconciler(dependencies),
    )
