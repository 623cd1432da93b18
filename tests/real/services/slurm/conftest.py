"""Fixtures that tests of another tier or room have, too."""

from tests.fast.services.slurm.conftest import cluster, world

__all__ = ["cluster", "world"]
