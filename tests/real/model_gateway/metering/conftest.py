"""Fixtures that tests of another tier or room have, too."""

from tests.fast.model_gateway.conftest import running, served
from tests.fast.model_gateway.metering.conftest import clock, desk

__all__ = ["clock", "desk", "running", "served"]
