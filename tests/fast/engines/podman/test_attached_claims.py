"""Claims that come and go below a folder, and who may keep one."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.podman.storage.attached_claims import AttachedClaim, show_claims
from neocloud.engines.podman.storage.mounts import is_mounted, mounts_below, unmount


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "shown"
    try:
        yield folder
    finally:
        for point in mounts_below(tmp_path):
            unmount(point)


def claim(tmp_path: Path, name: str, *, is_read_only: bool = False) -> AttachedClaim:
    path = tmp_path / name
    path.mkdir(exist_ok=True)
    (path / "file").write_text(name)
    return AttachedClaim(path, is_read_only)


def test_a_claim_that_is_only_read_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    show_claims(folder, {"data": claim(tmp_path, "data", is_read_only=True)})
    with pytest.raises(OSError) as caught:
        (folder / "data" / "file").write_text("changed")
    assert caught.value.errno == errno.EROFS
    show_claims(folder, {"data": claim(tmp_path, "data")})
    (folder / "data" / "file").write_text("changed")


def test_a_claim_in_use_stays_and_the_others_are_as_they_should_be(folder: Path, tmp_path: Path) -> None:
    one, two, three = (claim(tmp_path, name) for name in ("one", "two", "three"))
    show_claims(folder, {"one": one, "two": two})
    with (folder / "one" / "file").open() as used:
        with pytest.raises(EngineError, match="still uses the claim one"):
            show_claims(folder, {"three": three})
        assert used.read() == "one"
        assert is_mounted(folder / "one")
    assert sorted(path.name for path in folder.iterdir()) == ["one", "three"]
    show_claims(folder, {"three": three})
    show_claims(folder, {"three": three})
    assert sorted(path.name for path in folder.iterdir()) == ["three"]
    assert (tmp_path / "one" / "file").read_text() == "one", "the volume stays"


def test_what_a_crash_left_is_no_claim(folder: Path, tmp_path: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "old").mkdir()
    show_claims(folder, {"data": claim(tmp_path, "data")})
    assert (folder / "data" / "file").read_text() == "data"
    assert not (folder / "old").exists()


def test_a_link_in_the_place_of_a_claim_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    folder.mkdir()
    (folder / "data").symlink_to(tmp_path / "host")
    with pytest.raises((EngineError, OSError)):
        show_claims(folder, {"data": claim(tmp_path, "data")})
    assert not is_mounted(tmp_path / "host")
    assert os.listdir(tmp_path / "host") == []
