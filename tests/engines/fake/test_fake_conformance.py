"""The fake engine keeps every promise of the border, so that tests on it mean something."""

import pytest

from neocloud.engines.fake import FakeEngine
from neocloud.testing.engine_conformance import EngineConformance


class FakeBench:
    image = "busybox"
    root_filesystem = "localhost/neocloud/busybox:1"

    def __init__(self) -> None:
        self.engine = FakeEngine()

    def reopened(self) -> FakeEngine:
        return FakeEngine(self.engine.world)


@pytest.fixture(scope="module")
def bench() -> FakeBench:
    return FakeBench()


class TestFakeEngine(EngineConformance):
    pass
