"""Fixtures that tests of another tier or room have, too."""

from tests.e2e.inference.conftest import served

__all__ = ["served"]
