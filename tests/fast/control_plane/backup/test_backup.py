"""A backup holds the state of a cloud that is in use, and is restored whole or not at all. Issue 10."""

import asyncio
import json
import os
import re
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane.backup import write
from neocloud.control_plane.backup.archive import BackupError
from neocloud.control_plane.backup.contents import DATABASES, FILES
from neocloud.control_plane.backup.keys import Keys, new_key, read_keys
from neocloud.control_plane.backup.restore import check_backup, known_schemas
from neocloud.control_plane.backup.staging import PREFIX, draft_of, private_folder
from neocloud.core.store import upgrade
from neocloud.testing.waiting import until
from tests.fast.control_plane.backup.conftest import SECRET, UsedHome, insert, left_in, opened, restored


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def names_in(home: Path) -> list[str]:
    store = await opened(home)
    try:
        rows, _ = await store.read(lambda tx: tx.list("neocloud.slurm.v1.Cluster"))
        assert await store.read(lambda tx: tx.secret("slurmcluster-e00n0", "key")) == SECRET
    finally:
        await store.close()
    return [row.name for row in rows]


async def test_what_was_backed_up_is_restored(used: UsedHome, keys: Keys, tmp_path: Path) -> None:
    made = used.back_up(tmp_path / "cloud.age", keys)
    assert made.resources == {"neocloud.slurm.v1.Cluster": 3}
    assert made.outside == ()  # of settings that were not given
    home = tmp_path / "new" / "home"
    assert restored(tmp_path / "cloud.age", keys, home) == made
    assert await names_in(home) == ["n0", "n1", "n2"]
    for name in ("config.json", "ranges.json", "gateway/key", "tls/ca.pem", "tls/ca.key", "store.key"):
        assert (home / name).read_bytes() == (used.path / name).read_bytes()
    assert not (home / "server.json").exists() and not (home / "volumes").exists()
    assert left_in(home.parent) == ["home"]


async def test_everything_is_its_owners_alone(used: UsedHome, keys: Keys, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        used.back_up(tmp_path / "cloud.age", keys)
        restored(tmp_path / "cloud.age", keys, tmp_path / "new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "cloud.age") == 0o600 and mode(tmp_path / "new") == 0o700
    assert [path for path in (tmp_path / "new").iterdir() if mode(path) & 0o077] == []
    assert SECRET not in (tmp_path / "cloud.age").read_bytes()


async def test_writers_go_on_and_the_copy_is_of_one_moment(
    used: UsedHome, keys: Keys, tmp_path: Path
) -> None:
    """Each transaction inserts two rows; a copy that tore one apart would hold an odd number."""
    is_done = asyncio.Event()
    written = 3

    async def write_on() -> None:
        nonlocal written
        while not is_done.is_set():
            await insert(used.store, range(written, written + 2))
            written += 2

    writer = asyncio.create_task(write_on())
    counts = []
    for number in range(3):
        before = written
        target = tmp_path / f"{number}.age"
        made = await asyncio.to_thread(used.back_up, target, keys)
        counts.append(made.resources["neocloud.slurm.v1.Cluster"])
        assert counts[-1] >= before and counts[-1] % 2 == 1
        await until(lambda: written > before, "the copy does not stop the writer")  # noqa: B023
    is_done.set()
    await writer
    restored(tmp_path / "2.age", keys, tmp_path / "new")
    assert len(await names_in(tmp_path / "new")) == min(counts[-1], 100)


async def test_a_public_key_backs_up_and_does_not_restore(used: UsedHome, tmp_path: Path) -> None:
    secret, public = tmp_path / "secret", tmp_path / "public"
    secret.write_text(new_key())
    secret.chmod(0o600)
    public.write_text(re.findall(r"age1\w+", secret.read_text())[0] + "\n")
    used.back_up(tmp_path / "cloud.age", read_keys(public))
    with pytest.raises(BackupError, match="public keys only"):
        restored(tmp_path / "cloud.age", read_keys(public), tmp_path / "new")
    restored(tmp_path / "cloud.age", read_keys(secret), tmp_path / "new")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a key file"),
        ("# nothing\n", "holds no key"),
        ("AGE-SECRET-KEY-1X\n", "Line 1"),
        ("\0", "Line 1"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(BackupError, match=said):
        read_keys(tmp_path / "keys")


def test_a_secret_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(new_key())
    (tmp_path / "keys").chmod(0o640)
    with pytest.raises(BackupError, match="chmod 600"):
        read_keys(tmp_path / "keys")


async def test_a_file_that_is_there_is_replaced_only_by_force(
    used: UsedHome, keys: Keys, tmp_path: Path
) -> None:
    target = tmp_path / "cloud.age"
    target.write_text("of somebody")
    with pytest.raises(BackupError, match="exists already") as caught:
        used.back_up(target, keys)
    assert caught.value.is_conflict
    with pytest.raises(BackupError, match="is not a backup"):
        used.back_up(target, keys, replace=True)
    assert target.read_text() == "of somebody"
    target.unlink()
    for _ in range(2):
        used.back_up(target, keys, replace=True)
        check_backup(target, keys, lambda _: None)


async def test_no_backup_is_written_into_the_state_folder(used: UsedHome, keys: Keys) -> None:
    with pytest.raises(BackupError, match="`neo destroy` removes"):
        used.back_up(used.path / "cloud.age", keys)


async def test_a_postgresql_cloud_is_refused_with_what_to_do(
    used: UsedHome, keys: Keys, tmp_path: Path
) -> None:
    for settings in (
        replace(used.settings, database_url="postgresql://db.example/neocloud"),
        replace(used.settings, database_url_file=tmp_path / "url"),
    ):
        with pytest.raises(BackupError, match="pg_dump.*store.key"):
            write.write_backup(settings, tmp_path / "cloud.age", keys, lambda _: None)


async def test_a_damaged_database_is_not_backed_up(used: UsedHome, keys: Keys, tmp_path: Path) -> None:
    await used.store.close()
    (used.path / "state.db").write_bytes(b"x" * 10_000)
    with pytest.raises(BackupError, match=r"state\.db cannot be copied"):
        used.back_up(tmp_path / "cloud.age", keys)
    assert left_in(tmp_path) == ["backup.key", "home"]


async def test_what_killed_commands_left_is_removed(used: UsedHome, keys: Keys, tmp_path: Path) -> None:
    for folder in (used.path, tmp_path):
        (folder / f"{PREFIX}left").mkdir()
        (folder / f"{PREFIX}left" / "state.db").touch()
    (tmp_path / ".cloud.age.00c0ffee.partial").touch()
    used.back_up(tmp_path / "cloud.age", keys)
    restored(tmp_path / "cloud.age", keys, tmp_path / "new")
    assert left_in(tmp_path) == ["backup.key", "cloud.age", "home", "new"]
    assert not list(used.path.glob(f"{PREFIX}*"))


async def test_what_a_command_uses_is_not_removed_by_another(tmp_path: Path) -> None:
    with private_folder(tmp_path, "one") as one, private_folder(tmp_path, "two") as two:
        assert one.is_dir() and two.is_dir()
        with draft_of(tmp_path / "cloud.age") as (first, _), draft_of(tmp_path / "cloud.age") as (second, _):
            assert first.exists() and second.exists()
    assert left_in(tmp_path) == []


async def test_a_folder_that_another_command_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock it looks like one that a killed command left."""
    made = list[str]()
    make = tempfile.mkdtemp

    def make_and_lose(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with private_folder(tmp_path, "one") as folder:
        assert folder.is_dir() and len(made) == 2


# Full disks


async def test_a_full_disk_keeps_no_part_of_a_backup(
    used: UsedHome, keys: Keys, small_disk: Path, tmp_path: Path
) -> None:
    (used.path / "gateway" / "key").write_bytes(os.urandom(2 << 20))
    with pytest.raises(BackupError, match=f"No space is left for the backup in {small_disk}"):
        used.back_up(small_disk / "cloud.age", keys)
    assert left_in(small_disk) == []
    assert not list(used.path.glob(f"{PREFIX}*"))


async def test_an_earlier_backup_outlives_a_full_disk(used: UsedHome, keys: Keys, small_disk: Path) -> None:
    used.back_up(small_disk / "cloud.age", keys)
    (used.path / "gateway" / "key").write_bytes(os.urandom(2 << 20))
    with pytest.raises(BackupError, match="No space is left"):
        used.back_up(small_disk / "cloud.age", keys, replace=True)
    assert left_in(small_disk) == ["cloud.age"]
    check_backup(small_disk / "cloud.age", keys, lambda _: None)


async def test_the_disk_of_a_running_cloud_is_not_filled(
    used: UsedHome, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "free_bytes", lambda _: 1000)
    with pytest.raises(BackupError, match="has 1,000 bytes free.*Nothing was written"):
        used.back_up(tmp_path / "cloud.age", keys)
    assert not (tmp_path / "cloud.age").exists()


async def test_a_restore_onto_a_full_disk_leaves_nothing(
    used: UsedHome, keys: Keys, small_disk: Path
) -> None:
    (used.path / "gateway" / "key").write_bytes(os.urandom(2 << 20))
    target = used.path.parent / "cloud.age"
    used.back_up(target, keys)
    for home in (small_disk / "new", small_disk):
        with pytest.raises(BackupError, match="No space is left for the restored state"):
            restored(target, keys, home)
        assert left_in(small_disk) == []


# Where it is restored


async def test_a_disk_of_its_own_may_be_the_state_folder(backup: Path, keys: Keys, small_disk: Path) -> None:
    (small_disk / "lost+found").mkdir()
    restored(backup, keys, small_disk)
    assert await names_in(small_disk) == ["n0", "n1", "n2"]
    assert not list(small_disk.glob(f"{PREFIX}*"))


async def test_an_empty_folder_may_be_the_state_folder(backup: Path, keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir(mode=0o755)
    restored(backup, keys, tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700


async def test_a_cloud_is_never_overwritten(used: UsedHome, backup: Path, keys: Keys) -> None:
    before = {path: path.stat().st_mtime_ns for path in used.path.rglob("*")}
    with pytest.raises(BackupError, match="holds a cloud already"):
        restored(backup, keys, used.path)
    assert {path: path.stat().st_mtime_ns for path in used.path.rglob("*")} == before


async def test_a_folder_with_other_files_is_refused(backup: Path, keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "letter").touch()
    with pytest.raises(BackupError, match=r"holds other files \(letter\)"):
        restored(backup, keys, tmp_path / "new")
    assert left_in(tmp_path / "new") == ["letter"]
    with pytest.raises(BackupError, match="cannot be used"):
        restored(backup, keys, tmp_path / "new" / "letter")


async def test_a_check_writes_nothing(backup: Path, keys: Keys, tmp_path: Path) -> None:
    before = left_in(tmp_path)
    assert sum(check_backup(backup, keys, lambda _: None).resources.values()) == 3
    assert left_in(tmp_path) == before


# What it has to know


def test_the_schemas_are_those_that_the_store_knows() -> None:
    assert known_schemas() == upgrade._known_revisions()


async def test_a_server_that_neo_did_not_start_is_restored_as_what_it_was(
    used: UsedHome, keys: Keys, tmp_path: Path
) -> None:
    (used.path / "config.json").unlink()
    (used.path / "emulated-world").touch()
    used.back_up(tmp_path / "cloud.age", keys)
    restored(tmp_path / "cloud.age", keys, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == {"emulator": True}


async def test_deleted_rows_do_not_get_into_a_backup(used: UsedHome, keys: Keys, tmp_path: Path) -> None:
    """Not even in free pages of the database."""
    await used.store.write(lambda tx: tx.delete("slurmcluster-e00n0"))
    used.back_up(tmp_path / "cloud.age", keys)
    restored(tmp_path / "cloud.age", keys, tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new" / "state.db")) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_names_are_in_one_list_only() -> None:
    assert len({*DATABASES, *FILES}) == len(DATABASES) + len(FILES)
