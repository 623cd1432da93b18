"""Fixtures that tests of another tier or room have, too."""

from tests.fast.fleet.agent.conftest import bundle, node, nvml_library

__all__ = ["bundle", "node", "nvml_library"]
