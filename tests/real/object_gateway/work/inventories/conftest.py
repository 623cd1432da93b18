"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_gateway.work.inventories.conftest import inventories, served

__all__ = ["inventories", "served"]
