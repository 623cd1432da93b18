"""Writers of a folder do not choose which file the control plane opens (C1, H6, H7)."""

import os
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from neocloud.core.untrusted import files as untrusted_files
from neocloud.core.untrusted.files import Folder, UnsafePath, remove_tree
from neocloud.core.untrusted.trees import TreeLimits, copy_tree

SWAPS = 1000
SECRET = "of the host"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "file").write_text(SECRET)
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text(SECRET)
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("own")
    return folder


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to resolve; the second is taken where the kernel has no openat2."""
    if request.param == "walk":
        monkeypatch.setattr(
            untrusted_files,
            "_resolve",
            lambda folder, rel, path, *, inner_links: untrusted_files._walk(folder, rel, path),
        )
    return request.param


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("target", ["/", "../host", "../host/inner", "inner", "."])
@pytest.mark.parametrize("path", ["x", "x/file", "x/inner"])
def test_no_link_in_a_path_is_followed(volume: Path, outside: Path, target: str, path: str) -> None:
    (volume / "x").symlink_to(target)
    with Folder.open(volume) as folder, pytest.raises(UnsafePath, match="link"), folder.pinned(path):
        pass


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../host/file", "inner/../../host/file"])
def test_no_path_leads_out(volume: Path, outside: Path, path: str) -> None:
    with Folder.open(volume) as folder, pytest.raises(UnsafePath, match="leads out"):
        folder.read(path)


def test_inner_links_are_followed_only_where_asked_for_and_only_inside(volume: Path, outside: Path) -> None:
    (volume / "same").symlink_to("inner/file")
    (volume / "absolute").symlink_to(volume / "inner" / "file")
    (volume / "out").symlink_to("../host/file")
    with Folder.open(volume) as folder:
        assert folder.read("same", inner_links=True) == b"own"
        for name in ("absolute", "out"):
            with pytest.raises(UnsafePath):
                folder.read(name, inner_links=True)


@pytest.mark.usefixtures("way")
def test_only_regular_files_are_opened_and_a_fifo_does_not_hang(volume: Path) -> None:
    os.mkfifo(volume / "fifo")
    with Folder.open(volume) as folder:
        with pytest.raises(UnsafePath, match="neither a regular file"):
            folder.read("fifo")
        with pytest.raises(UnsafePath, match="is a folder"):
            folder.read("inner")
        with pytest.raises(FileNotFoundError):
            folder.read("absent")
        assert not folder.has_file("fifo") and not folder.has_file("absent") and folder.has_file("inner/file")


def test_reads_are_bounded(volume: Path) -> None:
    (volume / "long").write_bytes(b"x" * 100 + b"end")
    with Folder.open(volume) as folder:
        with pytest.raises(UnsafePath, match="larger than 102 bytes"):
            folder.read("long", limit=102)
        assert folder.read("long", limit=103).endswith(b"end") and folder.part("long", 100, 3) == (
            b"end",
            103,
        )


def test_nothing_is_written_through_a_link(volume: Path, outside: Path) -> None:
    for name in ("append", "write", "new"):
        (volume / name).symlink_to(outside / "file")
    (volume / "folder").symlink_to(outside)
    with Folder.open(volume) as folder:
        with pytest.raises(UnsafePath, match="is a link"):
            folder.append("append", b"more")
        with pytest.raises(FileExistsError):
            folder.new_file("new")
        with pytest.raises(UnsafePath, match="is a link"):
            folder.make("folder")
        folder.write("write", b"mine")
        folder.append("log", b"one\n")
        folder.append("log", b"two\n")
    assert (outside / "file").read_text() == SECRET
    assert (volume / "write").read_text() == "mine" and not (volume / "write").is_symlink()
    assert (volume / "log").read_text() == "one\ntwo\n"


def test_removing_follows_no_link(volume: Path, outside: Path) -> None:
    (volume / "inner" / "x").symlink_to(outside)
    untrusted_files.remove_tree(volume)
    assert not volume.exists() and (outside / "inner" / "file").read_text() == SECRET
    untrusted_files.remove_tree(volume)


def test_a_tree_is_copied_whole(volume: Path, tmp_path: Path) -> None:
    with (volume / "sparse").open("wb") as file:
        file.truncate(1 << 26)
        file.seek(1 << 25)
        file.write(b"data")
    os.utime(volume / "inner" / "file", (1000, 1000))
    target = tmp_path / "target"
    target.mkdir()
    with Folder.open(volume) as source, Folder.open(target) as copy:
        copy_tree(source, copy)
    assert (target / "inner" / "file").read_text() == "own" and (
        target / "inner" / "file"
    ).stat().st_mtime == 1000
    assert (target / "sparse").read_bytes() == (volume / "sparse").read_bytes()
    assert (target / "sparse").stat().st_blocks * 512 < 1 << 20
    assert not (target / "sparse").samefile(volume / "sparse")


def test_an_exact_copy_keeps_links_and_follows_none(volume: Path, outside: Path, tmp_path: Path) -> None:
    (volume / "x").symlink_to(outside)
    (volume / "inner").chmod(0o750)
    os.chown(volume / "inner" / "file", 1234, 1235)
    (volume / "inner" / "file").chmod(0o4711)
    target = tmp_path / "target"
    target.mkdir()
    with Folder.open(volume) as source, Folder.open(target) as copy:
        copy_tree(source, copy, exact=True)
    assert (target / "x").readlink() == outside and (target / "inner").stat().st_mode & 0o7777 == 0o750
    state = (target / "inner" / "file").stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o7777) == (1234, 1235, 0o4711)


def test_a_tree_with_anything_but_files_and_folders_is_not_copied(volume: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (volume / "inner" / "x").symlink_to("file")
    refused = pytest.raises(UnsafePath, match="inner/x is a link")
    with Folder.open(volume) as source, Folder.open(target) as copy, refused:
        copy_tree(source, copy)


def test_a_tree_is_bounded(volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (volume / str(number)).touch()
    target = tmp_path / "target"
    target.mkdir()
    with Folder.open(volume) as source, Folder.open(target) as copy:
        with pytest.raises(UnsafePath, match="more than 4 files"):
            copy_tree(source, copy, limits=TreeLimits(entries=4))
        monkeypatch.setattr(untrusted_files, "MAX_TREE_ENTRIES", 3)
        with pytest.raises(UnsafePath, match="more than 3 files"):
            source.names()


def test_a_copy_is_bounded_by_bytes_a_file_with_two_names_counting_twice(
    volume: Path, tmp_path: Path
) -> None:
    (volume / "one").write_bytes(b"x" * (1 << 20))
    (volume / "two").hardlink_to(volume / "one")
    for size, fits in ((3 << 20, True), (3 << 19, False)):
        target = tmp_path / str(size)
        target.mkdir()
        refused = nullcontext() if fits else pytest.raises(UnsafePath, match=f"more than {size:,} bytes")
        with Folder.open(volume) as source, Folder.open(target) as copy, refused:
            copy_tree(source, copy, exact=True, limits=TreeLimits(size=size))


def test_a_tree_of_any_depth_is_removed(tmp_path: Path, outside: Path) -> None:
    """Deeper than Python calls functions, and than there may be open files."""
    (tmp_path / "top").mkdir()
    current = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(3000):
        os.symlink(outside, "link", dir_fd=current)
        os.mkdir("inner", dir_fd=current)
        inner = os.open("inner", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()
    assert list(outside.iterdir()), "links are removed, never followed"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", ["x", "x/file"])
def test_a_thousand_swaps_never_lead_out(volume: Path, outside: Path, path: str) -> None:
    """A folder and a link to the host's take turns under one name while it is resolved."""
    (volume / "real").mkdir()
    (volume / "real" / "file").write_text("own")
    (volume / "link").symlink_to(outside)
    (volume / "real").rename(volume / "x")
    own, swaps, looks = _identities(volume / "x"), [0], 0
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (volume / "x").rename(volume / "real")
            (volume / "link").rename(volume / "x")
            (volume / "x").rename(volume / "link")
            (volume / "real").rename(volume / "x")
            swaps[0] += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with Folder.open(volume) as folder:
            while swaps[0] < SWAPS or looks < SWAPS:
                looks += 1
                try:
                    with folder.pinned(path) as pinned:
                        found = os.fstat(pinned)
                except (UnsafePath, FileNotFoundError, NotADirectoryError):
                    continue
                assert (found.st_dev, found.st_ino) in own
    finally:
        stop.set()
        swapper.join()


def _identities(folder: Path) -> set[tuple[int, int]]:
    states = [path.stat() for path in (folder, folder / "file")]
    return {(state.st_dev, state.st_ino) for state in states}
