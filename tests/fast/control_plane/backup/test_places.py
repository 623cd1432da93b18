"""Targets of backups and restored clouds: nothing of somebody else is replaced, on any file system."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from neocloud.cli.machine import home as home_module
from neocloud.cli.machine.home import Home
from neocloud.cli.main import run
from neocloud.control_plane.backup import restore, staging, write
from neocloud.control_plane.backup.archive import BackupError
from neocloud.control_plane.backup.keys import Keys, read_keys
from neocloud.control_plane.backup.restore import check_backup, restore_backup
from neocloud.control_plane.backup.staging import put_in_place
from neocloud.core.osfiles import locked
from tests.fast.control_plane.backup.conftest import UsedHome, left_in, restored


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse links, as vfat and some shares do."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)


@pytest.mark.parametrize("has_links", [True, False])
def test_nothing_is_replaced(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_links:
        no_links(monkeypatch)
    draft, folder = tmp_path / "draft", tmp_path / "folder"
    draft.write_text("mine")
    folder.mkdir()
    for name in ("file", "link", "empty"):
        (tmp_path / name).symlink_to("nowhere") if name == "link" else (tmp_path / name).write_text("")
    (tmp_path / "other").mkdir()
    before = left_in(tmp_path)
    for source in (draft, folder):
        for name in ("file", "link", "empty", "other"):
            with pytest.raises(FileExistsError):
                put_in_place(source, tmp_path / name)
    assert left_in(tmp_path) == before
    put_in_place(draft, tmp_path / "new")
    put_in_place(folder, tmp_path / "moved")
    assert (tmp_path / "new").read_text() == "mine"
    assert left_in(tmp_path) == ["empty", "file", "link", "moved", "new", "other"]


def test_a_move_that_fails_leaves_no_placeholder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch)
    (tmp_path / "draft").write_text("mine")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        put_in_place(tmp_path / "draft", tmp_path / "new")
    assert left_in(tmp_path) == ["draft"]


async def test_a_backup_goes_onto_a_stick(
    used: UsedHome, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(write, "write_file", lambda path, content: path.write_bytes(_bytes(content)))
        no_links(patched)
        used.back_up(tmp_path / "cloud.age", keys)
        with pytest.raises(BackupError, match="exists already"):
            used.back_up(tmp_path / "cloud.age", keys)
    check_backup(tmp_path / "cloud.age", keys, lambda _: None)


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize("name", ["letter", "state.db", "config.json"])
async def test_a_file_that_came_into_a_disk_meanwhile_stays(
    name: str, backup: Path, keys: Keys, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decrypting takes minutes; whatever comes before the move or within it is not replaced."""
    for moment in ("before", "within"):
        with monkeypatch.context() as patched:
            put = restore.put_in_place

            def come_and_put(draft: Path, target: Path) -> None:
                if target.name == name:
                    target.write_text("of somebody")
                put(draft, target)  # noqa: B023

            def show(_: str) -> None:
                (small_disk / name).write_text("of somebody")

            if moment == "within":
                patched.setattr(restore, "put_in_place", come_and_put)
            if (moment, name) == ("within", "letter"):
                continue
            with pytest.raises(BackupError, match="holds (other files|a cloud already)"):
                restore_backup(backup, keys, small_disk, show if moment == "before" else lambda _: None)
        assert left_in(small_disk) == [name] and (small_disk / name).read_text() == "of somebody"
        (small_disk / name).unlink()


async def test_the_mark_of_a_cloud_comes_last(
    backup: Path, keys: Keys, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[str]()
    put = restore.put_in_place

    def put_and_note(draft: Path, target: Path) -> None:
        order.append(target.name)
        put(draft, target)

    monkeypatch.setattr(restore, "put_in_place", put_and_note)
    restored(backup, keys, small_disk)
    assert order[-1] == "config.json" and set(order) == set(left_in(small_disk))


@pytest.mark.parametrize("name", ["state.db", "tls", "config.json"])
@pytest.mark.parametrize("is_half", [True, False], ids=["within", "after"])
async def test_a_restore_that_is_stopped_leaves_an_empty_disk(
    name: str, is_half: bool, backup: Path, keys: Keys, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = restore.put_in_place

    def put_and_stop(draft: Path, target: Path) -> None:
        if target.name == name and is_half and draft.is_file():
            os.link(draft, target)
            raise KeyboardInterrupt
        put(draft, target)
        if target.name == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(restore, "put_in_place", put_and_stop)
    with pytest.raises(KeyboardInterrupt):
        restored(backup, keys, small_disk)
    assert left_in(small_disk) == []


# Several commands


async def test_of_two_restores_one_makes_the_cloud(backup: Path, keys: Keys, tmp_path: Path) -> None:
    home = tmp_path / "new"
    other = list[str]()

    def meanwhile(_: str) -> None:
        if not other:
            other.append("restores")
            restored(backup, keys, home)
            (home / "config.json").write_text("of the other")

    with pytest.raises(BackupError, match="holds a cloud already"):
        restore_backup(backup, keys, home, meanwhile)
    assert (home / "config.json").read_text() == "of the other"


async def test_a_folder_that_neo_up_made_meanwhile_stays(backup: Path, keys: Keys, tmp_path: Path) -> None:
    home = tmp_path / "new"
    with pytest.raises(BackupError, match="holds a cloud already"):
        restore_backup(backup, keys, home, lambda _: Home(home).create())
    assert left_in(home) == ["config.json", "log", "neo.lock"]


async def test_neo_up_takes_what_was_restored_meanwhile(
    backup: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restored cloud comes after `neo up` has found an empty folder, and keeps its settings."""
    made = home_module.ensure_private

    def make_and_restore(path: Path) -> None:
        made(path)
        restored(backup, keys, path)

    monkeypatch.setattr(home_module, "ensure_private", make_and_restore)
    home = Home(tmp_path / "new")
    home.create()
    assert str(home.settings().price_file) == "/etc/prices.yaml"


async def test_a_folder_that_another_command_holds_is_refused(
    backup: Path, keys: Keys, tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "new").mkdir()
    for home in (tmp_path / "new", small_disk):
        with locked(home / "neo.lock"), pytest.raises(BackupError, match="Another `neo` is working on"):
            restored(backup, keys, home)
        assert left_in(home) == ["neo.lock"]
        restored(backup, keys, home)  # nobody holds the lock any more
        assert "config.json" in left_in(home)


async def test_a_cloud_that_is_starting_is_not_called_absent(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "new")
    home.create()
    command = ["backup", str(tmp_path / "cloud.age"), "--home", str(home.path)]
    command += ["--key-file", str(tmp_path / "backup.key")]
    with locked(home.path / "neo.lock"):
        assert run(command) == 5
    assert "is starting for the first time" in capsys.readouterr().err
    assert run(command) == 1
    assert "There is no cloud to back up" in capsys.readouterr().err


# Errors in words


def failing(error: Exception) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("name", ["_describe", "write_file", "_copy_files", "free_bytes", "draft_of"])
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), sqlite3.OperationalError("disk")]
)
async def test_a_disk_that_fails_is_no_defect(
    name: str, error: Exception, used: UsedHome, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, name, failing(error))
    with pytest.raises(BackupError, match="Nothing was changed"):
        used.back_up(tmp_path / "cloud.age", keys)
    assert left_in(tmp_path) == ["backup.key", "home"]


async def test_what_was_done_is_said_when_the_disk_does_not_confirm_it(
    used: UsedHome, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "sync_folder", failing(OSError(errno.EIO, "Input/output error")))
    for work in (
        lambda: used.back_up(tmp_path / "cloud.age", keys),
        lambda: restored(tmp_path / "cloud.age", keys, tmp_path / "new"),
    ):
        with pytest.raises(
            BackupError, match="was written, but the disk of .* does not confirm it"
        ) as caught:
            work()
        assert "Nothing was changed" not in str(caught.value)
    assert left_in(tmp_path) == ["backup.key", "cloud.age", "home", "new"]
    monkeypatch.setattr(staging, "sync_folder", failing(OSError(errno.EINVAL, "Invalid argument")))  # a share
    restored(tmp_path / "cloud.age", keys, tmp_path / "again")


def test_a_key_file_that_cannot_be_reached_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(BackupError, match="Not a directory"):
        read_keys(tmp_path / "plain" / "key")
    monkeypatch.setattr(
        "neocloud.cli.machine.home.Home.is_ours", failing(PermissionError(13, "Permission denied"))
    )
    assert run(["backup", str(tmp_path / "cloud.age"), "--home", str(tmp_path / "home")]) == 1
    assert "Permission denied" in capsys.readouterr().err
