"""Fixtures that tests of another tier or room have, too."""

from tests.e2e.images.machines.conftest import bench, machine

__all__ = ["bench", "machine"]
