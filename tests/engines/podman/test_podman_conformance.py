"""The Podman engine keeps every promise of the border, with real containers."""

import pytest

from neocloud.testing.engine_conformance import EngineConformance


@pytest.mark.e2e
class TestPodmanEngine(EngineConformance):
    pass
