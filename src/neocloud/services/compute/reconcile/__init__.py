"""Reconcilers of compute: volumes, copies of them, and machines."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.service import Dependencies
from neocloud.services.compute.reconcile.copies import ImageReconciler, SnapshotReconciler
from neocloud.services.compute.reconcile.disk_exports import DiskExportReconciler
from neocloud.services.compute.reconcile.image_import import ImageImports
from neocloud.services.compute.reconcile.machine import InstanceReconciler
from neocloud.services.compute.reconcile.volumes import DiskReconciler, FilesystemReconciler
from neocloud.services.storage.public import ObjectReads, ObjectWrites

__all__ = [
    "DiskExportReconciler",
    "DiskReconciler",
    "FilesystemReconciler",
    "ImageReconciler",
    "InstanceReconciler",
    "SnapshotReconciler",
    "reconcilers",
]


def reconcilers(dependencies: Dependencies) -> Sequence[AnyReconciler]:
    engine, store, settings = dependencies.engine, dependencies.store, dependencies.settings
    imports = ImageImports(
        engine, lambda: dependencies.provided.get(ObjectReads), lambda: settings.image("launcher")
    )
    return (
        FilesystemReconciler(engine, store),
        DiskReconciler(engine, store),
        SnapshotReconciler(engine, store),
        ImageReconciler(engine, store, imports),
        DiskExportReconciler(
            engine, store, lambda: dependencies.provided.get(ObjectWrites), lambda: settings.image("launcher")
        ),
        InstanceReconciler(dependencies),
    )
