"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_gateway.work.transfers.conftest import stores, transfers

__all__ = ["stores", "transfers"]
