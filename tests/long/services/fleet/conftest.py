"""Fixtures that tests of another tier or room have, too."""

from tests.fast.services.fleet.conftest import frequent_loops

__all__ = ["frequent_loops"]
