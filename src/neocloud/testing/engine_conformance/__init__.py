# pyright: standard
"""Tests of the behaviour of every engine, to inherit from.

Subclass `EngineConformance`, give it a module-scoped `bench` fixture, and pytest runs the whole suite against
that engine. The programs used are those of busybox; the suite asks nothing that `engines.base` does not
promise.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.testing.engine_conformance.images import ImageConformance
from neocloud.testing.engine_conformance.networks import NetworkConformance
from neocloud.testing.engine_conformance.pods import PodConformance
from neocloud.testing.engine_conformance.processes import ProcessConformance
from neocloud.testing.engine_conformance.volumes import VolumeConformance
from neocloud.testing.engine_space import OPEN_RULES, SERVE, Bench, Space


@pytest.mark.asyncio(loop_scope="module")
class EngineConformance(
    PodConformance, ProcessConformance, VolumeConformance, NetworkConformance, ImageConformance
):
    """All tests of an engine."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def space(self, bench: Bench) -> AsyncIterator[Space]:
        space = Space(bench.engine, bench.image)
        await space.apply(space.namespace())
        yield space
        await bench.engine.remove([Reference("Namespace", space.name, space.name)])


__all__ = ["OPEN_RULES", "SERVE", "Bench", "EngineConformance"]
