"""Backups of the object store: snapshots in a folder, taken while it is used, and restored elsewhere."""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neocloud.object_gateway.backups import location
from neocloud.object_gateway.backups.location import DRAFT, MARK, METADATA, ObjectBackupError, snapshots_of
from neocloud.object_gateway.backups.restore import restore
from neocloud.object_gateway.backups.write import BackedUp, back_up
from neocloud.object_store.garbage import collect
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket
from neocloud.object_store.verification import Checked, verify_store
from tests.fast.object_store.stores import KEY, KIB, MIB, get, keys, make_bucket, make_versioned, opened, put

START = datetime(2026, 11, 26, 20, 0, tzinfo=UTC)


class Used:
    """A store with a bucket, and a folder for its backups."""

    def __init__(self, store: ObjectStore, bucket: Bucket, folder: Path, target: Path) -> None:
        self.store, self.bucket, self.folder, self.target = store, bucket, folder, target
        self.backups = 0

    def back_up(self, keep: int = 7, target: Path | None = None) -> BackedUp:
        self.backups += 1
        now = START + timedelta(hours=self.backups)
        return back_up(self.folder, target or self.target, now, keep, lambda _: None)

    def blobs(self, folder: Path) -> set[str]:
        return {path.name for path in (folder / "blobs").glob("*/*")}


@pytest.fixture
async def used(tmp_path: Path) -> AsyncIterator[Used]:
    folder = tmp_path / "home" / "objects"
    async with opened(folder) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "small", b"in the database")
        await put(store, bucket, "large", b"a" * (3 * MIB))
        yield Used(store, bucket, folder, tmp_path / "backup")


def new_home(tmp_path: Path) -> Path:
    folder = tmp_path / "other" / "objects"
    folder.mkdir(parents=True, mode=0o700)
    return folder


async def test_objects_come_back_as_they_were_at_the_snapshot(used: Used, tmp_path: Path):
    history = await make_versioned(used.store, "history")
    for text in (b"first" * 10_000, b"second" * 10_000):
        await put(used.store, history, "key", text)
    first = used.back_up()
    await put(used.store, used.bucket, "large", b"b" * (2 * MIB))
    await put(used.store, used.bucket, "later", b"c" * (1 * MIB))
    second = used.back_up()

    assert (first.blobs, first.copied) == (3, 3)
    assert (second.blobs, second.copied, second.copied_bytes > 3 * MIB) == (4, 2, True)
    assert second.snapshots == ("20261126T210000Z", "20261126T220000Z")

    home = new_home(tmp_path)
    done = restore(used.target, home, KEY, first.snapshot, lambda _: None)
    assert (done.snapshot, done.versions, done.blobs) == (first.snapshot, 4, 3)
    async with opened(home) as restored:
        assert await get(restored, used.bucket, "small") == b"in the database"
        assert await get(restored, used.bucket, "large") == b"a" * (3 * MIB)
        page = await restored.list_versions(history.id)
        assert [each.is_latest for each in page.versions] == [True, False]
        assert not [each async for each in verify_store(restored.engine, START, Checked())]
        await put(restored, used.bucket, "new", b"d" * MIB)
        assert await get(restored, used.bucket, "new") == b"d" * MIB
    with pytest.raises(ObjectBackupError, match="holds objects already"):
        restore(used.target, home, KEY, None, lambda _: None)


async def test_old_snapshots_go_with_the_blobs_that_only_they_have(used: Used, tmp_path: Path):
    used.back_up()
    before = used.blobs(used.target)
    await put(used.store, used.bucket, "large", b"b" * MIB)
    done = used.back_up(keep=1)
    assert (done.removed, done.snapshots) == (1, (done.snapshot,))
    assert len(used.blobs(used.target) & before) == 0
    assert used.blobs(used.target) == used.blobs(used.folder) - before
    assert restore(used.target, new_home(tmp_path), KEY, None, lambda _: None).blobs == 1


async def test_an_object_that_is_deleted_while_it_is_copied(
    used: Used, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The metadata are copied again, so what is in the backup is one moment of the store."""
    (large,) = used.blobs(used.folder)
    await put(used.store, used.bucket, "other", b"c" * MIB)
    real, loop = location.copy_file, asyncio.get_running_loop()

    async def delete() -> None:
        await used.store.delete(used.bucket.id, "large")
        await collect(used.store.engine)

    def copy(source: Path, target: Path) -> int:
        if source.name == large:
            asyncio.run_coroutine_threadsafe(delete(), loop).result(30)
        return real(source, target)

    monkeypatch.setattr(location, "copy_file", copy)
    done = await asyncio.to_thread(used.back_up)
    assert done.blobs == 1
    home = new_home(tmp_path)
    restore(used.target, home, KEY, None, lambda _: None)
    async with opened(home) as restored:
        assert await keys(restored, used.bucket) == ["other", "small"]
        assert await get(restored, used.bucket, "other") == b"c" * MIB


async def test_a_blob_that_the_store_has_lost_is_said(used: Used):
    (lost,) = (used.folder / "blobs").glob("*/*")
    lost.unlink()
    with pytest.raises(ObjectBackupError, match=rf"{lost.name} is missing in the store"):
        used.back_up()
    assert snapshots_of(used.target) == ()


async def test_a_full_disk_leaves_the_earlier_snapshot(used: Used, monkeypatch: pytest.MonkeyPatch):
    first = used.back_up()
    await put(used.store, used.bucket, "more", b"b" * MIB)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(shutil, "copyfileobj", full)
        used.back_up()
    assert snapshots_of(used.target) == (first.snapshot,)
    assert used.back_up().copied == 1
    assert not list(used.target.glob(f"**/*{DRAFT}"))


async def test_folders_of_others_are_refused_and_left_alone(used: Used, tmp_path: Path):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_text("miau")
    with pytest.raises(ObjectBackupError, match="holds other files"):
        used.back_up(target=other)
    assert os.listdir(other) == ["cat.jpg"]
    with pytest.raises(ObjectBackupError, match="lies in the state folder"):
        used.back_up(target=used.folder / "backup")

    used.back_up()
    async with opened(tmp_path / "second" / "objects") as store:
        await make_bucket(store)
        with pytest.raises(ObjectBackupError, match="of another object store"):
            back_up(tmp_path / "second" / "objects", used.target, START, 1, lambda _: None)
    with pytest.raises(ObjectBackupError, match="holds no backup"):
        restore(other, new_home(tmp_path), KEY, None, lambda _: None)
    assert os.listdir(other) == ["cat.jpg"]


async def test_a_backup_that_cannot_be_restored_changes_nothing(used: Used, tmp_path: Path):
    done = used.back_up()
    home = new_home(tmp_path)
    with pytest.raises(ObjectBackupError, match="does not open the backup"):
        restore(used.target, home, bytes(32), None, lambda _: None)
    with pytest.raises(ObjectBackupError, match="There is no such snapshot"):
        restore(used.target, home, KEY, "20200101T000000Z", lambda _: None)
    with pytest.raises(ObjectBackupError, match="The object gateway runs"):
        restore(used.target, used.folder, KEY, None, lambda _: None)
    (blob,) = (used.target / "blobs").glob("*/*")
    blob.unlink()
    with pytest.raises(ObjectBackupError, match="missing in the backup"):
        restore(used.target, home, KEY, None, lambda _: None)
    metadata = used.target / "snapshots" / f"{done.snapshot}.db"
    metadata.write_bytes(metadata.read_bytes()[:8192])
    with pytest.raises(ObjectBackupError, match=r"is damaged|cannot be read"):
        restore(used.target, home, KEY, None, lambda _: None)
    assert not (home / METADATA).exists()
    (used.target / MARK).write_text(json.dumps({"format": 9, "store": "x"}))
    with pytest.raises(ObjectBackupError, match="a newer release"):
        used.back_up()


async def test_a_killed_backup_and_a_killed_restore_are_repeated(used: Used, tmp_path: Path):
    for number in range(150):
        await put(used.store, used.bucket, f"many/{number}", bytes([number]) * (17 * KIB))
    command = [sys.executable, "-m", "neocloud.object_gateway.backups"]

    def killed(verb: str, home: Path) -> None:
        """Kill it as soon as it has said that something was copied."""
        options = ["--home", str(home), "--folder", str(used.target)]
        with subprocess.Popen([*command, verb, *options], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "blob " in json.loads(line).get("progress", ""):
                    process.kill()
                    return
        raise AssertionError("It ended before it could be killed.")

    killed("backup", used.folder.parent)
    assert snapshots_of(used.target) == ()
    assert 0 < len(used.blobs(used.target)) < 151
    done = used.back_up()
    assert 0 < done.copied < 151
    home = new_home(tmp_path)
    (home / "store.key").touch(mode=0o600)
    (home / "store.key").write_text(KEY.hex())
    killed("restore", home.parent)
    assert not (home / METADATA).exists()
    assert restore(used.target, home, KEY, None, lambda _: None).blobs == 151
    async with opened(home) as restored:
        assert await get(restored, used.bucket, "many/149") == bytes([149]) * (17 * KIB)
