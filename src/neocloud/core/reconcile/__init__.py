"""From desired to observed state: services declare steps (`reconciler`), the `Worker` runs them."""

from neocloud.core.reconcile.worker import Worker

__all__ = ["Worker"]
