"""The Podman engine keeps every promise of the border, with real containers."""

from neocloud.testing.engine_conformance import EngineConformance


class TestPodmanEngine(EngineConformance):
    pass
