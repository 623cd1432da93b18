"""From wish to fact: bricks say it in steps (`steps`), the `Worker` runs them until it is true."""

from neocloud.core.reconcile.worker import Worker

__all__ = ["Worker"]
