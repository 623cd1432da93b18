"""Fixtures that tests of another tier or room have, too."""

from tests.fast.services.billing.conftest import bank

__all__ = ["bank"]
