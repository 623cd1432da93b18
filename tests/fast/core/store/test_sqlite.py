"""SQLite files that are in use, full, foreign, newer or locked; each ends in words and nothing is harmed."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.store import AlreadyExists, StoreError, Transaction, load_or_make_key, open_store
from neocloud.core.store import sqlite as sqlite_store
from neocloud.core.store.resource_query import ResourceQuery, SearchArea
from neocloud.testing.store_conformance.records import resource
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


async def test_what_was_written_is_there_after_reopening(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    await store.write(lambda tx: tx.insert(resource()))
    await store.close()
    store = await open_store(path, KEY, clock)
    assert await store.read(lambda tx: tx.get(resource().id)) == resource()
    await store.close()


READS_OF_WHAT_WAS_FOUND = {"SCAN below_0", "SCAN found"}


async def test_no_question_about_one_resource_reads_all_of_them(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    asked: list[str] = []

    def ask(tx: Transaction) -> None:
        raw = tx._connection.connection.dbapi_connection  # type: ignore[attr-defined]
        raw.set_trace_callback(asked.append)
        tx.get("a")
        tx.find("kind", "parent", "name")
        tx.owned("owner")
        tx.children("parent")
        tx.list("kind", parent_id="parent")
        tx.list_operations(resource_id="a", unfinished=True)
        conditions: tuple[dict[str, Any], ...] = ({"name": "web"}, {"name_prefix": "w"}, {"ids": ("a",)}, {})
        for each in conditions:
            place = SearchArea(kinds=("kind", "other"), parents=("parent",))
            tx.find_resources(ResourceQuery((place,), **each), size=10)
            place = SearchArea(kinds=("kind", "other"), roots=("parent",), ids=("a",))
            tx.find_resources(ResourceQuery((place,), ("container",), **each), size=10)
        raw.set_trace_callback(None)

    await store.read(ask)
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        plans = {
            sql: [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}")]
            for sql in asked
            if sql.startswith(("SELECT", "WITH"))
        }
    assert len(plans) == 14
    scans = [(sql, step) for sql, plan in plans.items() for step in plan if step.startswith("SCAN")]
    assert not [(sql, step) for sql, step in scans if step not in READS_OF_WHAT_WAS_FOUND]
    of_names = [str(plan) for sql, plan in plans.items() if "name = " in sql or "name >= " in sql]
    assert len(of_names) == 5 and all("resources_by_name (parent_id=?" in plan for plan in of_names)


async def test_the_index_of_names_is_replaced_in_an_older_database(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    await store.write(lambda tx: tx.insert(resource()))
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP INDEX resources_by_name")
        columns = "kind, parent_id, name"
        database.execute(f"CREATE UNIQUE INDEX resources_by_name ON resources ({columns}) WHERE name <> ''")
        database.execute("UPDATE alembic_version SET version_num = '0009'")
        database.commit()
    store = await open_store(path, KEY, clock)
    assert await store.read(lambda tx: tx.find(resource().kind, resource().parent_id, resource().name))
    with pytest.raises(AlreadyExists):
        await store.write(lambda tx: tx.insert(resource("another")))
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("PRAGMA index_info(resources_by_name)").fetchall()
    assert [row[2] for row in rows] == ["parent_id", "name", "kind"]


async def test_commits_are_flushed_to_disk(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    with store._database.engine.connect() as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    await store.close()


_WRITE_THEN_DIE = """
import asyncio, os, sys
from neocloud.core.store import open_store
from neocloud.testing.waiting import FakeClock
from neocloud.testing.store_conformance.records import resource

async def main():
    store = await open_store(sys.argv[1], bytes(32), FakeClock())
    await store.write(lambda tx: tx.insert(resource()))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_killed_process_loses_nothing_and_leaves_no_lock(path: Path, clock: FakeClock) -> None:
    died = subprocess.run([sys.executable, "-c", _WRITE_THEN_DIE, str(path)], check=False)
    assert died.returncode == -9
    store = await open_store(path, KEY, clock)
    assert await store.read(lambda tx: tx.get(resource().id)) == resource()
    await store.close()


async def test_a_second_opener_is_told_who_has_it(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    with pytest.raises(StoreError, match=f"in use by another Neocloud .process {os.getpid()}."):
        await open_store(path, KEY, clock)
    await store.close()


async def test_a_database_of_a_newer_release_is_refused_and_not_touched(path: Path, clock: FakeClock) -> None:
    await (await open_store(path, KEY, clock)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
        connection.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer Neocloud .schema 9999.*Upgrade"):
        await open_store(path, KEY, clock)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_not_touched(path: Path, clock: FakeClock) -> None:
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await open_store(path, KEY, clock)
    assert path.read_bytes() == b"not a database" * 1000


async def test_the_database_of_another_program_is_refused_and_not_touched(
    path: Path, clock: FakeClock
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        await open_store(path, KEY, clock)
    assert path.read_bytes() == before


async def test_a_missing_folder_is_named(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(StoreError, match="Check that the folder exists"):
        await open_store(tmp_path / "none" / "state.db", KEY, clock)


async def test_a_full_disk_is_said_and_what_was_there_stays(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    await store.write(lambda tx: tx.insert(resource("r1")))
    with store._database.engine.connect() as connection:  # type: ignore[attr-defined]
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="No space is left .* Free some space"):
        await store.write(lambda tx: tx.insert(resource("r2", name="big", spec=bytes(1_000_000))))
    assert await store.read(lambda tx: tx.get("r2")) is None
    assert await store.read(lambda tx: tx.get("r1")) == resource("r1")
    with store._database.engine.connect() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")
    await store.write(lambda tx: tx.insert(resource("r2", name="big", spec=bytes(1_000_000))))
    await store.close()


async def test_a_database_locked_by_another_program_is_said(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "_BUSY_MILLISECONDS", 20)
    store = await open_store(path, KEY, clock)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            await store.write(lambda tx: tx.insert(resource()))
        other.execute("ROLLBACK")
    await store.write(lambda tx: tx.insert(resource()))
    await store.close()


async def test_a_reader_cannot_write(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    with pytest.raises(StoreError):
        await store.read(lambda tx: tx.insert(resource()))
    await store.close()


async def test_secrets_are_not_in_the_file_and_need_the_key(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    await store.write(lambda tx: tx.put_secret("r1", "password", b"correct horse battery"))
    await store.close()
    assert b"correct horse battery" not in path.read_bytes()
    store = await open_store(path, bytes(31) + b"x", clock)
    with pytest.raises(StoreError, match="key file does not belong to this database"):
        await store.read(lambda tx: tx.secret("r1", "password"))
    await store.close()


def test_a_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    key = load_or_make_key(tmp_path / "key")
    assert len(key) == 32 and key != bytes(32)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert load_or_make_key(tmp_path / "key") == key


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_make_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        load_or_make_key(tmp_path / "key")


def test_a_key_that_cannot_be_made_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Cannot make the key file"):
        load_or_make_key(tmp_path / "none" / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(StoreError, match="5 bytes instead of 32"):
        load_or_make_key(tmp_path / "key")


async def test_a_long_read_keeps_nobody_waiting(path: Path, clock: FakeClock) -> None:
    store = await open_store(path, KEY, clock)
    has_begun, may_end = threading.Event(), threading.Event()

    def long(tx: Transaction) -> int:
        seen = len(tx.list("k")[0])
        has_begun.set()
        assert may_end.wait(60)
        return seen + len(tx.list("k")[0])

    reading = asyncio.create_task(store.read_long(long))
    await asyncio.to_thread(has_begun.wait, 60)
    await store.write(lambda tx: tx.insert(resource("r1", kind="k")))
    assert len(await store.read(lambda tx: tx.list("k")[0])) == 1
    may_end.set()
    assert await reading == 0  # one snapshot from beginning to end
    assert await store.read_long(lambda tx: len(tx.list("k")[0])) == 1
    await store.close()
