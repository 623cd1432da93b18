"""A backup that is stopped, or whose disk fails, leaves the one before as it was. Issue 10."""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.cli.commands import backup as commands
from neocloud.cli.machine.home import Home
from neocloud.cli.main import run
from neocloud.cli.signals import stopped_by_signals
from neocloud.client.errors import ClientError
from neocloud.control_plane.backup.archive import BackupError, PackedFiles
from neocloud.control_plane.backup.keys import Keys
from neocloud.control_plane.backup.restore import check_backup
from neocloud.control_plane.backup.staging import PREFIX, Stream
from tests.fast.control_plane.backup.conftest import UsedHome, left_in


@dataclass
class Calls:
    """Counts calls of a method, and does something before one of them."""

    work: Callable[[], None]
    at: int = 0
    count: int = 0

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def watched(*arguments: object) -> object:
            self.count += 1
            if self.count == self.at:
                self.work()
            return method(*arguments)

        monkeypatch.setattr(owner, name, watched)


def stop() -> None:
    signal.raise_signal(signal.SIGTERM)


def arguments(used: UsedHome, target: Path) -> list[str]:
    key = used.path.parent / "backup.key"
    return ["backup", str(target), "--home", str(used.path), "--key-file", str(key), "--force"]


@pytest.mark.parametrize(("owner", "name"), [(Stream, "write"), (PackedFiles, "read")])
async def test_a_stopped_backup_changes_nothing(
    owner: type,
    name: str,
    used: UsedHome,
    backup: Path,
    keys: Keys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever that is: the library that encrypts ignores errors of its last write."""
    (used.path / "gateway" / "key").write_bytes(os.urandom(200_000))
    before = backup.read_bytes()
    calls = Calls(stop)
    calls.watch(monkeypatch, owner, name)
    used.back_up(tmp_path / "other.age", keys)
    (tmp_path / "other.age").unlink()
    for at in range(1, calls.count + 1):
        calls.count, calls.at = 0, at
        with pytest.raises(SystemExit) as caught:
            run(arguments(used, backup))
        assert caught.value.code == 128 + signal.SIGTERM
        assert backup.read_bytes() == before
        assert left_in(tmp_path) == ["backup.key", "cloud.age", "home"]
        assert not list(used.path.glob(f"{PREFIX}*"))
    calls.at = 0
    assert run(arguments(used, backup)) == 0
    check_backup(backup, keys, lambda _: None)


async def test_an_error_of_the_last_write_is_one(
    used: UsedHome, backup: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    before = backup.read_bytes()
    calls = Calls(fail)
    calls.watch(monkeypatch, Stream, "write")
    used.back_up(tmp_path / "other.age", keys)
    for at in range(1, calls.count + 1):
        calls.count, calls.at = 0, at
        with pytest.raises(BackupError):
            used.back_up(backup, keys, replace=True)
        assert backup.read_bytes() == before


def test_each_signal_has_the_exit_code_of_the_shell() -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with pytest.raises(SystemExit) as caught, stopped_by_signals():
            signal.raise_signal(number)
        assert caught.value.code == code
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_a_library_turned_into_an_error_still_stops() -> None:
    with pytest.raises(SystemExit), stopped_by_signals():
        try:
            stop()
        except SystemExit:
            raise ValueError from None
    with pytest.raises(SystemExit), stopped_by_signals(), contextlib.suppress(SystemExit):
        stop()


def test_ignored_signals_stay_so_and_handlers_come_back() -> None:
    at_end = signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is at_end


# What the options name


async def test_the_key_is_not_replaced_by_its_backup(
    used: UsedHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, new = tmp_path / "backup.key", tmp_path / "new.key"
    key.write_text("AGE-SECRET-KEY-1")
    for path, more in ((key, ["--force"]), (new, ["--force", "--new-key"])):
        assert run(["backup", str(path), "--home", str(used.path), "--key-file", str(path), *more])
        assert "Name" in capsys.readouterr().err
    assert key.read_text() == "AGE-SECRET-KEY-1" and not new.exists()
    inside = ["--key-file", str(used.path / "backup.key"), "--new-key"]
    assert run(["backup", str(tmp_path / "cloud.age"), "--home", str(used.path), *inside])
    assert "lies in the state folder" in capsys.readouterr().err
    assert not (used.path / "backup.key").exists()


async def test_no_key_is_made_for_a_backup_that_cannot_be(used: UsedHome, tmp_path: Path) -> None:
    (used.path / "store.key").unlink()
    new = ["--key-file", str(tmp_path / "new.key"), "--new-key"]
    assert run(["backup", str(tmp_path / "cloud.age"), "--home", str(used.path), *new]) == 1
    assert not (tmp_path / "new.key").exists()


def test_a_cloud_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "gone")
    with (
        pytest.raises(ClientError, match="There is no cloud in"),
        home.locked(lambda: None, may_create=False),
    ):
        pass
    assert not home.path.exists()


async def test_a_key_file_that_came_meanwhile_is_not_called_ours(
    used: UsedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(path: Path, _: str) -> None:
        path.write_text("of somebody")

    monkeypatch.setattr(commands, "create_file", lose)
    new = ["--key-file", str(tmp_path / "new.key"), "--new-key"]
    assert run(["backup", str(tmp_path / "cloud.age"), "--home", str(used.path), *new]) == 7
    said = capsys.readouterr().err
    assert "exists already" in said and "Made the key file" not in said
    assert (tmp_path / "new.key").read_text() == "of somebody"


async def test_the_command_that_starts_a_restored_cloud_can_be_pasted(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a cloud"
    key = ["--key-file", str(tmp_path / "backup.key")]
    assert run(["restore", str(backup), "--home", str(home), *key]) == 0
    assert f"--home '{home}'`" in capsys.readouterr().out
