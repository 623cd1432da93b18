"""C1: which sub-folder of a volume a pod gets is decided once, by descriptor. Real mounts, no Podman."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import EngineError, PathRefused
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.mounts import detach, mounts_below
from neocloud.engines.podman.storage.pod_mounts import PodMounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

SWAPS = 1000


class ElsewhereLayout(Layout):
    """Its run folder is not on the machine's /run."""

    @property
    def run(self) -> Path:
        return self.home / "run"


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = ElsewhereLayout(tmp_path, "abcdef")
    yield layout
    for point in mounts_below(layout.run):
        detach(point)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("own")
    return folder


def document(*sub_paths: str) -> dict[str, Any]:
    mounts = [{"name": "data", "mountPath": f"/{n}", "subPath": path} for n, path in enumerate(sub_paths)]
    container = {"name": "main", "image": "busybox", "volumeMounts": mounts}
    volumes = [{"name": "data", "emptyDir": {}}]
    return {
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "space"},
        "spec": {"containers": [container], "volumes": volumes},
    }


def pod(*sub_paths: str) -> Pod:
    return Pod.from_dict(document(*sub_paths))


def test_a_link_to_the_host_is_refused_with_its_name(layout: Layout, volume: Path) -> None:
    (volume / "x").symlink_to("/")
    with pytest.raises(PathRefused, match='"x" is a link'):
        PodMounts(layout).mount(pod("x"), {"data": volume})
    with pytest.raises(PathRefused, match='"x/etc" has a link in its path'):
        PodMounts(layout).mount(pod("x/etc"), {"data": volume})
    os.mkfifo(volume / "fifo")
    with pytest.raises(PathRefused, match="neither"):
        PodMounts(layout).mount(pod("fifo"), {"data": volume})
    assert mounts_below(layout.run) == []


@pytest.mark.parametrize("path", ["/etc", "..", "inner/../.."])
def test_a_path_that_leads_out_is_no_manifest(path: str) -> None:
    with pytest.raises(EngineError, match="subPath must stay inside"):
        pod(path)


def test_what_is_shown_stays_whatever_takes_its_name(layout: Layout, volume: Path) -> None:
    sub_paths = PodMounts(layout)
    (point,) = sub_paths.mount(pod("inner"), {"data": volume}).sub_paths.values()
    (volume / "inner").rename(volume / "moved")
    (volume / "inner").symlink_to("/")
    assert (point / "file").read_text() == "own"
    with pytest.raises(PathRefused):
        sub_paths.mount(pod("inner"), {"data": volume})
    (volume / "inner").unlink()
    (volume / "inner").mkdir()
    assert sub_paths.mount(pod("inner"), {"data": volume}).sub_paths == {("data", "inner"): point}
    assert list(point.iterdir()) == []
    assert len(mounts_below(layout.run)) == 1
    sub_paths.remove("space", "one")
    assert mounts_below(layout.run) == [] and (volume / "moved" / "file").read_text() == "own"


def test_files_can_be_shown_too_and_removing_deletes_nothing(layout: Layout, volume: Path) -> None:
    sub_paths = PodMounts(layout)
    shown = sub_paths.mount(pod("inner/file", "inner", "inner"), {"data": volume}).sub_paths
    assert shown["data", "inner/file"].read_text() == "own" and len(shown) == 2
    sub_paths.remove("space", "one")
    sub_paths.remove("space", "one")
    assert (volume / "inner" / "file").read_text() == "own"


def test_a_thousand_swaps_show_nothing_from_outside(layout: Layout, volume: Path) -> None:
    (volume / "link").symlink_to("/")
    own, swaps, shown = (volume / "inner").stat(), [0], 0
    stop = threading.Event()

    def swap() -> None:
        names = [volume / name for name in ("inner", "link", "other")]
        while not stop.is_set():
            os.rename(names[0], names[2])
            os.rename(names[1], names[0])
            os.rename(names[0], names[1])
            os.rename(names[2], names[0])
            swaps[0] += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    sub_paths = PodMounts(layout)
    try:
        while swaps[0] < SWAPS or not shown:
            try:
                (point,) = sub_paths.mount(pod("inner"), {"data": volume}).sub_paths.values()
            except EngineError:
                continue
            shown += 1
            assert os.path.samestat(point.stat(), own)
            detach(point)
    finally:
        stop.set()
        swapper.join()
