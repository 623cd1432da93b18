"""The reconcilers of object storage."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.service import Dependencies
from neocloud.services.storage.reconcile.buckets import BucketReconciler
from neocloud.services.storage.reconcile.inventories import InventoryReconciler
from neocloud.services.storage.reconcile.transfers import TransferReconciler


def reconcilers(dependencies: Dependencies) -> Sequence[AnyReconciler]:
    return (
        BucketReconciler(dependencies),
        TransferReconciler(dependencies),
        InventoryReconciler(dependencies),
    )
