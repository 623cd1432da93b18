# pyright: standard
"""Conformance of pulled images: they run as they say, have the names they are given, and can be removed."""

from typing import Any

import pytest

from neocloud.engines.base import EngineError, PodPhase
from neocloud.testing.engine_space import Bench, Space

_OVER = (PodPhase.SUCCEEDED, PodPhase.FAILED)


def runs(image: str, **container: Any) -> dict[str, Any]:
    """Arguments for `Space.pod`: a pod that runs once from an image, and prints text only with these
    arguments.
    """
    return {"restartPolicy": "Never", "container": {"image": image, "command": [], **container}}


@pytest.mark.asyncio(loop_scope="module")
class ImageConformance:
    async def test_a_pulled_image_runs_as_it_says_unless_the_pod_says_otherwise(
        self, space: Space, bench: Bench
    ) -> None:
        pull = bench.pull("first")
        await bench.engine.pull_image(pull)
        await bench.engine.pull_image(pull)
        await space.apply(
            space.pod("as-it-says", **runs(pull.image)),
            space.pod("arguments", **runs(pull.image, args=["given"])),
            space.pod("command", **runs(pull.image, command=["echo", "own"])),
        )
        for name, said in (("as-it-says", "first"), ("arguments", "given"), ("command", "own")):
            pod = await space.until(name, lambda pod: pod.phase in _OVER)
            assert pod.phase is PodPhase.SUCCEEDED, pod.message
            assert await space.lines(name) == [said]

    async def test_an_image_stays_while_it_is_used_and_then_goes(self, space: Space, bench: Bench) -> None:
        one, two = bench.pull("one"), bench.pull("two")
        for pull in (one, two):
            await bench.engine.pull_image(pull)
        await space.apply(space.pod("user", ["sleep", "3600"], container={"image": one.image}))
        await space.until("user", lambda pod: pod.ready)
        with pytest.raises(EngineError, match="in use"):
            await bench.engine.remove_image(one.image)
        await space.remove("Pod", "user")
        for _ in range(2):
            await bench.engine.remove_image(one.image)
        assert {one.image, two.image} & await bench.engine.pulled_images() == {two.image}
        assert two.image in await bench.reopened().pulled_images()
        with pytest.raises(EngineError, match=one.image):
            await space.apply(space.pod("late", ["sleep", "3600"], container={"image": one.image}))
