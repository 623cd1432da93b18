"""Fixtures that tests of another tier or room have, too."""

from tests.fast.model_gateway.conftest import running, served

__all__ = ["running", "served"]
