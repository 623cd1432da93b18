"""Last reads: gathered in memory, written with later commits, and what lifecycle rules make of them."""

import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from neocloud.object_store.errors import StoreFull
from neocloud.object_store.last_access import AccessCondition, AccessMethod, counts
from neocloud.object_store.lifecycle import LifecycleAction, apply_lifecycle
from neocloud.object_store.lifecycle_rules import LifecycleRule, Transition
from neocloud.object_store.metadata import database
from neocloud.object_store.metadata.database import Accesses
from neocloud.object_store.metadata.schema import LAST_ACCESS, MIGRATIONS
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket, RequestClass, StorageClass
from neocloud.object_store.usage import UsageReader
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import check_sums, files, make_bucket, opened, put

DAY, DAY_MS = 86_400, 86_400_000
START = datetime(2026, 1, 1, tzinfo=UTC)
GET, HEAD, COPY = AccessMethod.GET_OBJECT, AccessMethod.HEAD_OBJECT, AccessMethod.COPY_OBJECT
IDLE = LifecycleRule("idle", transition=Transition(StorageClass.INTELLIGENT, days_since_last_access=3))


async def note(store: ObjectStore, bucket: Bucket, key: str, agent: str = "") -> None:
    store.note_access(bucket.id, await store.head(bucket.id, key), GET, agent)


async def classes(store: ObjectStore, bucket: Bucket) -> dict[str, str]:
    found = (await store.list_objects(bucket.id)).objects
    return {each.key: str(each.storage_class) for each in found}


@pytest.mark.usefixtures("metadata")
async def test_what_nobody_reads_changes_its_class_and_its_price(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store, lifecycle=(IDLE,))
        await put(store, bucket, "never", b"x" * 1000)
        await put(store, bucket, "read", b"x" * 1000)
        await clock.advance(DAY + 3600)
        await note(store, bucket, "read")
        await clock.advance(2 * DAY - 3600)
        assert await apply_lifecycle(store.engine, bucket.id, clock.now()) == {LifecycleAction.MOVE: 1}
        assert await classes(store, bucket) == {"never": "INTELLIGENT", "read": "STANDARD"}
    async with opened(tmp_path, clock) as store:  # what was committed is there after a restart
        await clock.advance(2 * DAY - 1)
        assert await apply_lifecycle(store.engine, bucket.id, clock.now()) == {}
        await clock.advance(1)
        assert await apply_lifecycle(store.engine, bucket.id, clock.now()) == {LifecycleAction.MOVE: 1}
        assert await apply_lifecycle(store.engine, bucket.id, clock.now()) == {}
        counters = {each.storage_class: each.simple_bytes for each in store.counters(bucket.id)}
        assert (counters[StorageClass.STANDARD], counters[StorageClass.INTELLIGENT]) == (0, 2000)
        await clock.advance(DAY + 3600)
        stored: Counter[str] = Counter()
        for each in UsageReader(tmp_path, clock).read(["project-a"], START, START + timedelta(days=6)):
            stored[each.what] += each.count
        assert stored["stored.STANDARD"] == 1000 * DAY_MS * (3 + 5)
        assert stored["stored.INTELLIGENT"] == 1000 * DAY_MS * (3 + 1)
    check_sums(tmp_path)


@pytest.mark.usefixtures("metadata")
async def test_a_read_within_the_transaction_keeps_the_object(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store, lifecycle=(IDLE,))
        await put(store, bucket, "k", b"1")
        version = await store.head(bucket.id, "k")
        await clock.advance(5 * DAY)
        write = store.engine.database.write

        async def read_before(work: Any) -> Any:
            store.note_access(bucket.id, version, GET, "")
            return await write(work)

        with mock.patch.object(store.engine.database, "write", read_before):
            assert await apply_lifecycle(store.engine, bucket.id, clock.now()) == {}
        assert await classes(store, bucket) == {"k": "STANDARD"}


async def test_two_transitions_do_not_move_an_object_back_and_forth(tmp_path: Path) -> None:
    clock = FakeClock()
    later = LifecycleRule("later", transition=Transition(StorageClass.ENHANCED_THROUGHPUT, days=5))
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store, lifecycle=(IDLE, later))
        await put(store, bucket, "k", b"1")
        found: list[Any] = []
        for _ in range(8):
            await clock.advance(DAY)
            found.append(await apply_lifecycle(store.engine, bucket.id, clock.now()))
        assert found == [{}, {}, {LifecycleAction.MOVE: 1}, {}, {LifecycleAction.MOVE: 1}, {}, {}, {}]
        assert await classes(store, bucket) == {"k": "ENHANCED_THROUGHPUT"}


async def test_reads_cost_no_commit_of_their_own(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        for number in range(50):
            await put(store, bucket, f"k{number}", b"1")
        await store.flush()
        connection: Any = store.engine.database._writing  # pyright: ignore[reportPrivateUsage]
        statements: list[str] = []
        assert isinstance(connection, sqlite3.Connection)
        connection.set_trace_callback(statements.append)
        for _ in range(3):
            for number in range(50):
                await note(store, bucket, f"k{number}")
        assert statements == []
        await store.flush()
        assert statements.count("COMMIT") == 1
        assert sum(each.startswith("UPDATE version SET accessed_ms") for each in statements) == 50
        statements.clear()
        await clock.advance(DAY - 1)
        await note(store, bucket, "k1")
        await store.flush()
        assert not [each for each in statements if "accessed_ms" in each], "it is written once a day"
        await clock.advance(1)
        await note(store, bucket, "k1")
        await store.delete(bucket.id, "k2")
        assert len([each for each in statements if "SET accessed_ms" in each]) == 1
        connection.set_trace_callback(None)
        found = await store.head(bucket.id, "k1")
        assert found.accessed_ms == int((START + timedelta(days=1)).timestamp() * 1000)


@pytest.mark.usefixtures("metadata")
async def test_a_flush_ends_while_clients_go_on_reading(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"1")
        write, commits = store.engine.database.write, 0

        async def read_meanwhile(work: Any) -> Any:
            nonlocal commits
            commits += 1
            assert commits < 10
            store.count(bucket.id, RequestClass.READ)
            done = await write(work)
            await note(store, bucket, "k")
            store.count(bucket.id, RequestClass.READ)
            return done

        await note(store, bucket, "k")
        with mock.patch.object(store.engine.database, "write", read_meanwhile):
            await store.flush()
        assert commits == 1


async def test_a_full_disk_keeps_reads_and_lets_objects_be_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for key in ("a", "b"):
            await put(store, bucket, key, b"1")
        await store.flush()
        await note(store, bucket, "a")
        full = sqlite3.OperationalError("full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL

        def write(_: object, taken: object) -> None:
            if taken:
                raise full

        with mock.patch.object(database, "write_accesses", side_effect=write):
            with pytest.raises(StoreFull):
                await store.flush()
            await store.delete(bucket.id, "b")
        await store.flush()
        assert (await store.head(bucket.id, "a")).accessed_ms is not None
    assert files(tmp_path) == []


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_WAITING", 5)
    monkeypatch.setattr(database, "MOST_IN_A_COMMIT", 2)
    waiting = Accesses()
    assert [waiting.note(seq, None, seq) for seq in range(7)] == [True] * 5 + [False] * 2
    assert waiting.note(3, None, 30), "one that waits already takes no more room"
    first = waiting.take()
    assert [each[1] for each in first] == [0, 1] and waiting.commits == 2
    waiting.put_back(first)
    assert waiting.commits == 4, "one goes without, after the commit that failed"
    assert waiting.take() == ()
    rest = sorted(each[:2] for _ in range(3) for each in waiting.take())
    assert rest == [(0, 0), (1, 1), (2, 2), (4, 4), (30, 3)]
    assert waiting.commits == 0


async def test_an_old_file_is_upgraded_and_its_objects_count_from_then(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock()) as store:
        bucket = await make_bucket(store, lifecycle=(IDLE,))
        await put(store, bucket, "k", b"1")
    with sqlite3.connect(tmp_path / "meta.db") as connection:  # as the release before wrote it
        connection.execute("ALTER TABLE version DROP COLUMN accessed_ms")
        settings = b"replace(settings, '\"access_filter\":[],', '')".decode()
        connection.execute(f"UPDATE bucket SET settings = CAST({settings} AS BLOB)")
        connection.execute("DROP TABLE object_event")
        connection.execute("DROP INDEX manifest_reference_digest")
        connection.execute(f"PRAGMA user_version = {MIGRATIONS.index(LAST_ACCESS)}")
    connection.close()
    async with opened(tmp_path, FakeClock()) as store:
        (value,) = store.engine.database.reading.execute(
            "SELECT value FROM fact WHERE name = 'last-access-since'"
        ).fetchone()
        upgraded = datetime.fromtimestamp(int(value) / 1000, UTC)
        assert (await store.head(bucket.id, "k")).accessed_ms is None
        for days, done in ((3, {}), (4, {LifecycleAction.MOVE: 1})):
            now = upgraded + timedelta(days=days) - timedelta(seconds=1)
            assert await apply_lifecycle(store.engine, bucket.id, now) == done
    check_sums(tmp_path)


@pytest.mark.parametrize(
    ("conditions", "method", "agent", "is_counted"),
    [
        ((), GET, "", True),
        ((AccessCondition(False),), GET, "", False),
        ((AccessCondition(False, (HEAD,)),), GET, "aws-cli", True),
        ((AccessCondition(False, (HEAD, GET)),), GET, "aws-cli", False),
        ((AccessCondition(False, (), ("backup", "scan")),), GET, "my-scanner/1", False),
        ((AccessCondition(False, (), ("backup",)),), GET, "Backup", True),
        ((AccessCondition(False, (COPY,), ("backup",)),), COPY, "train", True),
        ((AccessCondition(True, (GET,), ("train",)), AccessCondition(False)), GET, "my-train", True),
        ((AccessCondition(True, (GET,), ("train",)), AccessCondition(False)), GET, "", False),
        ((AccessCondition(False), AccessCondition(True)), GET, "", False),
    ],
)
def test_the_first_condition_that_matches_decides(
    conditions: tuple[AccessCondition, ...], method: AccessMethod, agent: str, is_counted: bool
) -> None:
    assert counts(conditions, method, agent) is is_counted
