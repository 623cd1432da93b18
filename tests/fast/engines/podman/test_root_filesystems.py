"""The folder of an image's name; no Podman is asked."""

from pathlib import Path

import pytest

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import root_filesystem


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "images/jail/v1/rootfs").mkdir(parents=True)
    (tmp_path / "images/jail/rootfs").symlink_to("v1/rootfs")
    return Layout.of(tmp_path)


@pytest.mark.parametrize("name", ["localhost/neocloud/jail:v1", "neocloud/jail:v1"])
def test_a_version_that_is_here_is_its_folder(layout: Layout, name: str) -> None:
    assert root_filesystem(layout, name) == layout.images / "jail/v1/rootfs"


@pytest.mark.parametrize(
    "name",
    [
        "localhost/neocloud/jail:v2",  # a version that is missing is not replaced by the one that is there
        "localhost/neocloud/jail",
        "localhost/neocloud/jail:latest",
        "localhost/neocloud/other:v1",
        "localhost/neocloud/jail/deeper:v1",
        "example.org/neocloud/jail:v1",
        "localhost/neocloud/jail:..",
        "localhost/neocloud/..:jail",
        "localhost/neocloud/jail:v1/../v1",
        "localhost/neocloud/jail:v1\n",
        "busybox",
    ],
)
def test_all_else_is_no_root_file_system(layout: Layout, name: str) -> None:
    assert root_filesystem(layout, name) is None


def test_a_version_without_its_folder_is_not_here(layout: Layout) -> None:
    (layout.images / "jail/half").mkdir()
    (layout.images / "jail/file").mkdir()
    (layout.images / "jail/file/rootfs").write_text("no folder")
    assert root_filesystem(layout, "localhost/neocloud/jail:half") is None
    assert root_filesystem(layout, "localhost/neocloud/jail:file") is None


def test_the_folder_is_named_without_links_so_that_a_link_moved_later_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "jail/v1/rootfs").mkdir(parents=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / "images").symlink_to(kept)
    assert root_filesystem(Layout.of(home), "localhost/neocloud/jail:v1") == kept / "jail/v1/rootfs"
