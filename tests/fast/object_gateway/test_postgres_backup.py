"""Backups of stores whose metadata are in PostgreSQL: with its own programs, and a real server."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from neocloud.core.osfiles import create_file
from neocloud.object_gateway.backups import location
from neocloud.object_gateway.backups import postgres as postgres_backups
from neocloud.object_gateway.backups.location import DRAFT, MARK, ObjectBackupError, snapshots_of
from neocloud.object_gateway.backups.restore import Restored, restore
from neocloud.object_gateway.backups.write import BackedUp, back_up
from neocloud.object_store.garbage import collect
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket
from neocloud.object_store.verification import Checked, verify_store
from tests.fast.object_store import stores
from tests.fast.object_store.stores import KEY, MIB, get, keys, make_bucket, make_versioned, opened, put

START = datetime(2026, 11, 26, 20, 0, tzinfo=UTC)
pytestmark = pytest.mark.parametrize("metadata", ["postgresql"], indirect=True)


class Used:
    """A store with a bucket, a folder for its backups, and another cloud with a database of its own."""

    def __init__(self, store: ObjectStore, bucket: Bucket, folder: Path, target: Path, other: Path) -> None:
        self.store, self.bucket, self.folder, self.target, self.other = store, bucket, folder, target, other
        self.home = folder.parents[1] / "other" / "objects"
        self.home.mkdir(parents=True, mode=0o700)
        self.backups = 0

    def back_up(self, keep: int = 7) -> BackedUp:
        self.backups += 1
        return back_up(self.folder, self.target, START + timedelta(hours=self.backups), keep, lambda _: None)

    def restore(self, snapshot: str | None = None, key: bytes = KEY) -> Restored:
        return restore(self.target, self.home, key, snapshot, lambda _: None, self.other)

    def snapshot(self) -> Path:
        return self.target / "snapshots" / f"{snapshots_of(self.target)[-1]}.pg"


@pytest.fixture
async def used(tmp_path: Path, metadata: Path, new_database: Callable[[], str]) -> AsyncIterator[Used]:
    folder, other = tmp_path / "home" / "objects", tmp_path / "other-url"
    create_file(other, new_database())
    async with opened(folder) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "small", b"in the database")
        await put(store, bucket, "large", b"a" * (3 * MIB))
        yield Used(store, bucket, folder, tmp_path / "backup", other)


@pytest.fixture
def in_other(used: Used, metadata: Path) -> Callable[[], None]:
    """Let the stores that are opened from now on use the other database."""

    def switch() -> None:
        stores.metadata = used.other

    return switch


async def test_objects_come_back_as_they_were_at_the_snapshot(used: Used, in_other: Callable[[], None]):
    history = await make_versioned(used.store, "history")
    for text in (b"first" * 10_000, b"second" * 10_000):
        await put(used.store, history, "key", text)
    first = used.back_up()
    await put(used.store, used.bucket, "large", b"b" * (2 * MIB))
    second = used.back_up()
    assert (first.blobs, first.copied, second.blobs, second.copied) == (3, 3, 3, 1)
    assert json.loads((used.target / MARK).read_text())["format"] == 2, "earlier releases leave it alone"

    done = used.restore(first.snapshot)
    assert (done.snapshot, done.versions, done.blobs) == (first.snapshot, 4, 3)
    with pytest.raises(ObjectBackupError, match="holds objects already"):
        used.restore()
    in_other()
    async with opened(used.home) as restored:
        assert await get(restored, used.bucket, "small") == b"in the database"
        assert await get(restored, used.bucket, "large") == b"a" * (3 * MIB)
        page = await restored.list_versions(history.id)
        assert [each.is_latest for each in page.versions] == [True, False]
        assert not [each async for each in verify_store(restored.engine, START, Checked())]
        await put(restored, history, "key", b"third" * 10_000)
        assert await get(restored, history, "key") == b"third" * 10_000, "the sequences continue"
        with pytest.raises(ObjectBackupError, match="The object gateway runs"):
            used.restore()


async def test_old_snapshots_go_with_the_blobs_that_only_they_have(used: Used):
    used.back_up()
    await put(used.store, used.bucket, "large", b"b" * MIB)
    done = used.back_up(keep=1)
    assert (done.removed, done.snapshots) == (1, (done.snapshot,))
    assert [path.name for path in (used.target / "snapshots").iterdir()] == [f"{done.snapshot}.pg"]
    assert used.restore().blobs == 1


async def test_what_is_deleted_and_written_meanwhile_belongs_to_one_moment(
    used: Used, in_other: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    (large,) = (path.name for path in (used.folder / "blobs").glob("*/*"))
    await put(used.store, used.bucket, "other", b"c" * MIB)
    real, loop = location.copy_file, asyncio.get_running_loop()

    async def change() -> None:
        await used.store.delete(used.bucket.id, "large")
        await put(used.store, used.bucket, "later", b"d" * MIB)
        await collect(used.store.engine)

    def copy(source: Path, target: Path) -> int:
        if source.name == large:
            asyncio.run_coroutine_threadsafe(change(), loop).result(30)
        return real(source, target)

    monkeypatch.setattr(location, "copy_file", copy)
    assert (await asyncio.to_thread(used.back_up)).blobs == 2
    used.restore()
    in_other()
    async with opened(used.home) as restored:
        assert await keys(restored, used.bucket) == ["later", "other", "small"]
        assert await get(restored, used.bucket, "later") == b"d" * MIB


async def test_a_blob_that_the_store_has_lost_is_said(used: Used):
    (lost,) = (used.folder / "blobs").glob("*/*")
    lost.unlink()
    with pytest.raises(ObjectBackupError, match=rf"{lost.name} is missing in the store"):
        used.back_up()
    assert snapshots_of(used.target) == ()


async def test_a_backup_that_cannot_be_restored_changes_nothing(used: Used):
    used.back_up()
    with pytest.raises(ObjectBackupError, match="does not open the backup"):
        used.restore(key=bytes(32))
    with pytest.raises(ObjectBackupError, match="no address of a database"):
        restore(used.target, used.home, KEY, None, lambda _: None)
    (blob,) = (used.target / "blobs").glob("*/*")
    kept = blob.rename(used.target.parent / "kept")
    with pytest.raises(ObjectBackupError, match="missing in the backup"):
        used.restore()
    kept.rename(blob)
    names = used.snapshot() / "blobs"
    names.write_text("../../etc/passwd\n")
    with pytest.raises(ObjectBackupError, match="is damaged"):
        used.restore()
    used.back_up()
    with (used.snapshot() / "metadata.dump").open("r+b") as dump:
        dump.seek(-10, os.SEEK_END)
        dump.write(b"tampered!!")
    with pytest.raises(ObjectBackupError, match="is damaged"):
        used.restore()
    assert not (used.home / "metadata.json").exists()
    with psycopg.connect(used.other.read_text()) as database:
        assert database.execute("SELECT to_regclass('neocloud_objects.content')").fetchone() == (None,)


async def test_a_dump_that_fails_leaves_the_earlier_snapshot_and_is_repeated(
    used: Used, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = used.back_up()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pg_dump").write_text(
        "#!/bin/sh\necho 'pg_dump: error: could not write: No space' >&2\nexit 1\n"
    )
    (programs / "pg_dump").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        with pytest.raises(ObjectBackupError, match="could not write: No space"):
            used.back_up()
        (programs / "pg_dump").unlink()
        patched.setenv("PATH", str(programs))
        with pytest.raises(ObjectBackupError, match="pg_dump is not installed"):
            used.back_up()
    assert snapshots_of(used.target) == (first.snapshot,)
    used.back_up()
    assert not list(used.target.glob(f"**/{DRAFT}*"))


AWKWARD = r"a:b\c'd e%"


@pytest.fixture
def locked_database(used: Used) -> str:
    """The address of the other database for a user with a password that the server asks for."""
    address = used.other.read_text()
    parts = conninfo_to_dict(address)
    rules = Path(str(parts["host"])) / "data" / "pg_hba.conf"
    with psycopg.connect(address, autocommit=True) as database:
        role, literal = f"locked_{parts['dbname']}", AWKWARD.replace("'", "''")
        database.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{literal}'".encode())
        rules.write_text(f"local all {role} scram-sha-256\n{rules.read_text()}")
        database.execute("SELECT pg_reload_conf()")
    return f"postgresql://{role}:{quote(AWKWARD, safe='')}@/{parts['dbname']}?host={parts['host']}"


async def test_a_password_is_in_no_argument_variable_or_file(
    used: Used, locked_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The server asks for it, and what the programs get is written down."""
    used.back_up()
    used.other.write_text(locked_database)
    real, seen, programs = shutil.which("pg_restore"), tmp_path / "seen", tmp_path / "bin"
    programs.mkdir()
    script = f'#!/bin/sh\n{{ echo "$@"; env; }} > {seen}\nexec {real} "$@"\n'
    (programs / "pg_restore").write_text(script)
    (programs / "pg_restore").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PGPASSWORD", "of somebody else")
    assert used.restore().blobs == 1
    text = seen.read_text()
    assert "PGPASSFILE=/proc/self/fd/" in text and "PGPASSWORD" not in text
    assert AWKWARD not in text and quote(AWKWARD, safe="") not in text and "locked" in text


async def test_another_password_is_refused_in_words_without_it(used: Used, locked_database: str):
    used.back_up()
    wrong = locked_database.replace(quote(AWKWARD, safe=""), "guess-5eed")
    with pytest.raises(ObjectBackupError) as refused:
        postgres_backups._run("pg_dump", wrong, ["--no-password", "--file=/dev/null"])
    said = f"{refused.value} {refused.value.next_step}"
    assert "password authentication failed" in said and "guess-5eed" not in said
