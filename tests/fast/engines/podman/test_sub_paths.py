"""C1: a pod that mounts a sub-folder of a volume sees that folder and nothing else of the machine."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import EngineError, PathRefused, Reference
from neocloud.engines.podman.storage.mounts import mounts_below
from neocloud.testing.engine_space import Space, mounted
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOLUME = {"persistentVolumeClaim": {"claimName": "data"}}


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    """A volume with the folder `inner`, and in it a file."""
    space = Space(bench.engine, bench.image)
    await space.apply(space.namespace(), space.claim("data"), space.pod("writer", **mounted(VOLUME, "/data")))
    await space.run("writer", "sh", "-c", "busybox mkdir /data/inner && echo own >/data/inner/file")
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


def reader(space: Space, sub_path: str, command: list[str] | None = None) -> dict[str, Any]:
    return space.pod("reader", command, **mounted(VOLUME, "/inner", subPath=sub_path))


@pytest.mark.parametrize("target", ["/", "/etc", "../../..", "inner"])
async def test_a_link_in_a_volume_is_not_mounted(space: Space, target: str) -> None:
    await space.run("writer", "sh", "-c", f"busybox ln -s {target} /data/x")
    for sub_path in ("x", "x/etc"):
        with pytest.raises(PathRefused, match="link"):
            await space.apply(reader(space, sub_path))
    found = await space.seen("reader")
    assert found is None or found.started_at is None


async def test_a_folder_that_is_not_there_is_named(space: Space) -> None:
    with pytest.raises(EngineError, match='there is no "absent"'):
        await space.apply(reader(space, "absent"))


async def test_a_sub_folder_is_mounted_and_goes_with_its_pod(space: Space, bench: PodmanBench) -> None:
    await space.apply(reader(space, "inner"))
    assert await space.read("reader", "/inner/file") == b"own\n"
    await space.run("reader", "tee", "/inner/more", stdin=b"new")
    assert await space.read("writer", "/data/inner/more") == b"new"
    assert len(mounts_below(bench.engine.layout.pod_mounts)) == 1
    await space.remove("Pod", "reader")
    assert mounts_below(bench.engine.layout.pod_mounts) == []
    assert await space.read("writer", "/data/inner/file") == b"own\n"


async def test_what_is_put_in_its_place_later_is_not_shown(space: Space, bench: PodmanBench) -> None:
    """Not when Podman restarts the container by itself, and not to the next server."""
    pod = reader(space, "inner", ["sh", "-c", "cat /inner/file; exec sleep 3600"])
    await space.apply(pod)
    await until(lambda: space.lines("reader"), holds=lambda lines: lines == ["own"])
    swap = "cd /data && busybox mv inner moved && busybox ln -s / inner"
    await space.run("writer", "sh", "-c", swap)
    await space.kill("reader")
    await until(lambda: space.lines("reader"), holds=lambda lines: lines == ["own", "own"])
    again = Space(bench.reopened(), bench.image)
    again.name = space.name
    try:
        await again.apply(pod)  # it runs: nothing happens to it
        assert await again.read("reader", "/inner/file") == b"own\n"
        with pytest.raises(PathRefused):
            await again.engine.restart(space.reference("Pod", "reader"))
    finally:
        await again.engine.close()


async def test_a_pod_that_was_stopped_gets_its_folder_again(space: Space, bench: PodmanBench) -> None:
    await space.apply(reader(space, "inner"))
    await bench.engine.shutdown()
    assert mounts_below(bench.engine.layout.pod_mounts) == []
    await space.apply(
        space.claim("data"), space.pod("writer", **mounted(VOLUME, "/data")), reader(space, "inner")
    )
    assert await space.read("reader", "/inner/file") == b"own\n"
