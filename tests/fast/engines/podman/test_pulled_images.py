"""Images of registries on real Podman: hostile layers, the credential, what interrupted pulls leave."""

import asyncio
import gzip
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import EngineError, PodPhase, Reference
from neocloud.engines.images import ImageSettings, ImageTooLarge
from neocloud.engines.podman.storage.mounts import mounts_below, unmount
from neocloud.testing.engine_space import Space
from tests.fast.container_images import add as add_entry
from tests.fast.container_images import busybox_layer, layer, write_layout
from tests.fast.engines.podman.conftest import PodmanBench
from tests.fast.engines.podman.registry import PASSWORD

pytestmark = pytest.mark.asyncio(loop_scope="module")
ZEROS = 256 * 2**20
PEOPLE = "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n"
FILL = "busybox dd if=/dev/zero of=/opt/file bs=1M count=64 2>&1 | grep -c 'No space'"
REPORT = f'id -u; pwd; echo "$WORD"; {FILL}'


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    space = Space(bench.engine, bench.image)
    await space.apply(space.namespace())
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


def left(bench: PodmanBench) -> list[Path]:
    """Return the remains of images that are not whole."""
    layout = bench.engine.layout
    folders = [path for path in layout.pulled.glob("*") if not (path / "image.json").exists()]
    whole = {path.parent.name for path in layout.pulled.glob("*/image.json")}
    mounts = [path for path in mounts_below(layout.pulled_mounts) if path.name not in whole]
    return folders + [path for path in mounts if not whole & set(path.parts)]


async def test_an_image_is_run_by_its_settings_and_within_the_disk_of_its_container(
    bench: PodmanBench, space: Space
) -> None:
    write_layout(bench.registry.folder / "report", [busybox_layer({"etc/passwd": PEOPLE})])
    settings = ImageSettings(("sh", "-c"), (REPORT,), ("PATH=/bin", "WORD=two words"), "user", "/not/there")
    pull = bench.pull_of("report", settings)
    await bench.engine.pull_image(pull)
    limited = {"resources": {"limits": {"ephemeral-storage": str(32 << 20)}}}
    for name, more in (("as-user", {}), ("as-root", {"securityContext": {"runAsUser": 0}})):
        for point in mounts_below(bench.engine.layout.pulled_mounts):
            unmount(point)  # as a boot does
        container: dict[str, Any] = {"image": pull.image, "command": [], **limited, **more}
        await space.apply(space.pod(name, restartPolicy="Never", container=container))
        await space.until(name, lambda pod: pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED))
        number, is_full = ("0", "1") if more else ("1000", "0")
        assert await space.lines(name) == [number, "/not/there", "two words", is_full]
        await space.remove("Pod", name)


async def test_what_does_not_fit_or_is_not_whole_leaves_nothing(bench: PodmanBench) -> None:
    """A layer that unpacks to more than its pull may take, one of many files, and one that is damaged."""
    folder, before = bench.registry.folder, await bench.engine.pulled_images()
    zeros = gzip.compress(layer(lambda tar: add_entry(tar, "zeros", bytes(ZEROS))), 1)
    large = write_layout(folder / "large", [zeros])

    def add_many(tar: tarfile.TarFile) -> None:
        for number in range(9000):
            add_entry(tar, f"f{number}")

    many = write_layout(folder / "many", [layer(add_many)])
    damaged = write_layout(folder / "damaged", [busybox_layer({"etc/made-by": "damaged"})])
    for blob in (damaged / "blobs" / "sha256").iterdir():
        if blob.stat().st_size > 100_000:
            blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    for image in (large, many):
        with pytest.raises(ImageTooLarge, match="does not fit"):
            await bench.engine.pull_image(bench.pull_of(image.name, ImageSettings()))
    with pytest.raises(EngineError, match="Podman did not pull"):
        await bench.engine.pull_image(bench.pull_of("damaged", ImageSettings()))
    assert left(bench) == [] and await bench.engine.pulled_images() == before


async def test_a_pull_shows_its_credential_to_nobody_and_leaves_nothing_when_it_is_cancelled(
    bench: PodmanBench,
) -> None:
    registry = bench.registry
    write_layout(registry.folder / "slow", [busybox_layer({"etc/made-by": "slow"})])
    registry.gate, registry.asked = threading.Event(), threading.Event()
    pulling = asyncio.create_task(bench.engine.pull_image(bench.pull_of("slow", ImageSettings())))
    try:
        await asyncio.to_thread(registry.asked.wait, 60)
        assert registry.asked.is_set()
        secret = PASSWORD.encode()
        for shown in ("cmdline", "environ"):
            assert not [path for path in Path("/proc").glob(f"[0-9]*/{shown}") if secret in read(path)]
        layout = bench.engine.layout
        kept = [path for folder in (layout.home, layout.run) for path in folder.rglob("*") if path.is_file()]
        assert not [path for path in kept if path.stat().st_size < 2**20 and secret in read(path)]
    finally:
        pulling.cancel()
        registry.gate.set()
        registry.gate = None
    with pytest.raises(asyncio.CancelledError):
        await pulling
    assert left(bench) == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
