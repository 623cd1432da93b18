"""Metadata in PostgreSQL: gateways beside each other, one that takes over, and a database that is away."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from neocloud.core.contract import ApiError
from neocloud.core.osfiles import create_file
from neocloud.object_gateway.backups.write import back_up
from neocloud.object_gateway.verify import verify
from neocloud.object_store.blobs.files import FileBlobs
from neocloud.object_store.errors import (
    ConditionFailed,
    InvalidRequest,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    QuotaExceeded,
    StoreBusy,
    StoreUnavailable,
)
from neocloud.object_store.metadata import postgres, postgres_connection
from neocloud.object_store.store import ObjectStore, open_store
from neocloud.object_store.types import Attributes, CompletedPart, WriteConditions
from neocloud.object_store.usage import UsageReader
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import (
    KEY,
    MIB,
    check_sums,
    desired,
    get,
    keys,
    make_bucket,
    make_versioned,
    opened,
    put,
    put_part,
)

pytestmark = pytest.mark.usefixtures("postgresql_metadata")


@asynccontextmanager
async def two_gateways(base: Path) -> AsyncIterator[tuple[ObjectStore, ObjectStore]]:
    """Yield two stores on one database, with one folder for bodies."""
    with ThreadPoolExecutor(4) as executor:

        def blobs() -> FileBlobs:
            return FileBlobs(base / "blobs", executor)

        async with (
            opened(base / "one", blobs=blobs(), is_alone=False) as one,
            opened(base / "two", blobs=blobs(), is_alone=False) as two,
        ):
            yield one, two


def sessions(file: Path, action: str) -> int:
    """Do something to all connections of gateways to the database; return how many there were."""
    with psycopg.connect(file.read_text(), autocommit=True) as connection:
        query = f"SELECT {action}(pid) FROM pg_stat_activity WHERE application_name = 'neocloud-objects'"
        return len(connection.execute(query.encode()).fetchall())


async def test_one_of_many_conditional_puts_wins(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stores:
        bucket = await make_bucket(stores[0])
        once = WriteConditions(if_none_match="*")

        async def attempt(number: int) -> str:
            try:
                await put(stores[number % 2], bucket, "k", b"%d" % number, conditions=once)
            except ConditionFailed:
                return "lost"
            return str(number)

        for _ in range(3):
            outcomes = Counter(await asyncio.gather(*(attempt(number) for number in range(16))))
            assert outcomes.pop("lost") == 15
            (winner,) = outcomes
            assert [await get(store, bucket, "k") for store in stores] == [winner.encode()] * 2
            await stores[1].delete(bucket.id, "k")
    check_sums(tmp_path)


async def test_each_sees_at_once_what_the_other_answered(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (one, two):
        bucket = await make_versioned(one)
        for number in range(10):
            writer, reader = (one, two) if number % 2 else (two, one)
            version = await put(writer, bucket, f"k{number}", b"x" * 100_000)
            assert f"k{number}" in await keys(reader, bucket)
            assert (await reader.head(bucket.id, f"k{number}")).version_id == version.version_id
            assert await get(reader, bucket, f"k{number}") == b"x" * 100_000
            await reader.delete(bucket.id, f"k{number}")
            with pytest.raises(NoSuchKey):
                await writer.head(bucket.id, f"k{number}")
        upload = await one.create_upload(bucket.id, "parts", Attributes())
        parts = [
            await put_part(store, bucket, "parts", upload.upload_id, number, b"x" * 5 * MIB)
            for number, store in enumerate((one, two), 1)
        ]
        named = [CompletedPart(each.number, each.etag) for each in parts]
        await two.complete_upload(bucket.id, "parts", upload.upload_id, named)
        assert len(await get(one, bucket, "parts")) == 10 * MIB
    check_sums(tmp_path)


async def test_versions_of_one_key_are_in_the_order_of_their_answers(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stores:
        bucket = await make_versioned(stores[0])
        made = [await put(stores[number % 2], bucket, "k", b"%d" % number) for number in range(12)]
        await asyncio.gather(*(put(stores[number % 2], bucket, "k", b"x") for number in range(20)))
        found = (await stores[1].list_versions(bucket.id)).versions
        assert [each.version_id for each in found[20:]] == [each.version_id for each in reversed(made)]
        assert [each.is_latest for each in found] == [True] + [False] * 31
    check_sums(tmp_path)


async def test_a_quota_holds_over_both(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as stores:
        bucket = await make_bucket(stores[0], max_size_bytes=5000)

        async def attempt(number: int) -> bool:
            try:
                await put(stores[number % 2], bucket, f"k{number}", b"x" * 1000)
            except QuotaExceeded:
                return False
            return True

        assert sum(await asyncio.gather(*(attempt(number) for number in range(20)))) == 5
        assert not await attempt(20)
        assert not await attempt(21)
        await stores[0].delete(bucket.id, (await keys(stores[1], bucket))[0])
        assert await attempt(23), "the other one knows what was deleted"
    check_sums(tmp_path)


async def test_changes_of_buckets_are_seen_by_the_other(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (one, two):
        bucket = await make_bucket(one)
        assert two.bucket("bucket").id == bucket.id
        await one.apply_bucket(desired(generation=2, max_size_bytes=10))
        with pytest.raises(QuotaExceeded):
            await two.open_write(bucket.id, 11, key="k")
        await one.forget_bucket(bucket.id)
        assert two.buckets() == []
        with pytest.raises(NoSuchBucket):
            two.bucket("bucket")
        with pytest.raises(NoSuchBucket):
            await keys(two, bucket)


async def test_what_both_count_is_billed_once(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (one, two):
        bucket = await make_bucket(one)
        for store in (one, two) * 5:
            store.count(bucket.id, None, egress_bytes=10)
        await asyncio.gather(one.flush(), two.flush())
        clock = one.clock
        assert isinstance(clock, FakeClock)
        start = clock.now()
        await clock.advance(2 * 3600)
        found = UsageReader(tmp_path / "two", clock).read(["project-a"], start, clock.now())
        assert [each.count for each in found if each.what == "egress"] == [100]


async def test_a_gateway_that_is_alone_keeps_others_out_until_it_is_gone(
    tmp_path: Path,
    postgresql_metadata: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connection, "_LOG_SECONDS", 0)
    monkeypatch.setattr(postgres, "WAIT_SECONDS", 1)
    async with opened(tmp_path / "one") as one:
        bucket = await make_bucket(one)
        await put(one, bucket, "k", b"1")
        for is_alone in (False, True):
            with pytest.raises(StoreUnavailable, match="Another object gateway uses"):
                async with opened(tmp_path / "two", is_alone=is_alone):
                    pass
        sessions(postgresql_metadata, "pg_terminate_backend")
        async with opened(tmp_path / "two") as two:
            assert await get(two, bucket, "k") == b"1"
            await put(two, bucket, "k", b"2")
            with pytest.raises(StoreUnavailable, match="do not answer"):
                await put(one, bucket, "k", b"1")
            assert "Another object gateway uses" in caplog.text
            assert await get(two, bucket, "k") == b"2"


async def test_a_restart_of_the_database_fails_nothing_that_comes_after(
    tmp_path: Path, postgresql_metadata: Path
) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for number in range(3):
            assert sessions(postgresql_metadata, "pg_terminate_backend") == 2
            await put(store, bucket, "k", b"%d" % number)
            assert await get(store, bucket, "k") == b"%d" % number
    check_sums(tmp_path)


async def test_a_database_that_is_away_is_said_so_and_found_again(
    tmp_path: Path, postgresql_metadata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "RETRY_SECONDS", 0)
    address = postgresql_metadata.read_text()
    socket = Path(str(conninfo_to_dict(address)["host"])) / ".s.PGSQL.5432"
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        start, bucket = clock.now(), await make_bucket(store)
        await put(store, bucket, "k", b"1")
        assert await get(store, bucket, "k") == b"1"
        with psycopg.connect(address, autocommit=True) as other:
            socket.rename(socket.with_name("away"))
            try:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'neocloud-objects'"
                )
                store.count(bucket.id, None, egress_bytes=7)
                for call in (get(store, bucket, "k"), put(store, bucket, "k", b"2"), store.flush()):
                    with pytest.raises(StoreBusy, match="do not answer"):
                        await call
                with pytest.raises(ApiError, match="cannot be read now"):
                    UsageReader(tmp_path, clock).read(["project-a"], start, start + timedelta(days=1))
            finally:
                socket.with_name("away").rename(socket)
        assert await get(store, bucket, "k") == b"1"
        await put(store, bucket, "k", b"3")
        await clock.advance(7200)
        used = {
            each.what: each.count
            for each in UsageReader(tmp_path, clock).read(["project-a"], start, clock.now())
        }
        assert used["egress"] == 7, "what was counted meanwhile is kept"
    check_sums(tmp_path)


async def test_a_server_that_does_not_answer_stops_reads_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "READ_SECONDS", 0.3)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="do not answer"):
            store.engine.database.reading.execute("SELECT pg_sleep(20)")
        assert time.monotonic() - start < 5
        assert await keys(store, bucket) == []


async def test_text_that_postgresql_cannot_keep_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "a\0b", b"1")  # keys are bytes
        assert await keys(store, bucket) == ["a\0b"]
        with pytest.raises((NoSuchUpload, InvalidRequest)):
            await store.list_parts(bucket.id, "k", "id\0")
        with pytest.raises(InvalidRequest):
            await store.delete_tag(bucket.id, "repository", "tag\0")
        await put(store, bucket, "k", b"1")


async def test_a_newer_schema_is_refused(tmp_path: Path, postgresql_metadata: Path) -> None:
    async with opened(tmp_path):
        pass
    with psycopg.connect(postgresql_metadata.read_text()) as connection:
        connection.execute(b"UPDATE neocloud_objects.schema_version SET version = 99")
    with pytest.raises(StoreUnavailable, match="newer release"):
        async with opened(tmp_path):
            pass


async def test_metadata_are_not_looked_for_in_the_wrong_place(
    tmp_path: Path, postgresql_metadata: Path
) -> None:
    async with opened(tmp_path / "there"):
        pass
    with pytest.raises(StoreUnavailable, match=f"`neo config set object-metadata {postgresql_metadata}`"):
        await open_store(tmp_path / "there", KEY, FakeClock())
    store = await open_store(tmp_path / "here", KEY, FakeClock())
    await store.close()
    with pytest.raises(StoreUnavailable, match="`neo config unset object-metadata`"):
        async with opened(tmp_path / "here"):
            pass
    with pytest.raises(StoreUnavailable, match="The key does not belong"):
        await open_store(tmp_path / "there", bytes(32), FakeClock(), metadata=postgresql_metadata)


@pytest.mark.parametrize(
    ("address", "mode", "words"),
    [
        ("postgresql://u:s3cret@127.0.0.1:1/x", 0o644, "open to other users"),
        ("mysql://u:s3cret@127.0.0.1/x", 0o600, "does not hold an address"),
        ("postgresql://u:s3cret@127.0.0.1:1/x", 0o600, "does not answer"),
        ("postgresql://u:s3cret@[", 0o600, "cannot be read"),
        ("postgresql://u:s3cret@127.0.0.1/x?wrong=1", 0o600, "cannot be read"),
        ("postgresql://u:p@s3cret@127.0.0.1/x", 0o600, "%40"),
    ],
)
async def test_an_address_is_private_and_no_error_shows_its_password(
    tmp_path: Path, address: str, mode: int, words: str
) -> None:
    file = tmp_path / "url"
    create_file(file, address, mode)
    with pytest.raises(StoreUnavailable, match=words) as caught:
        await open_store(tmp_path / "store", KEY, FakeClock(), metadata=file)
    assert "s3cret" not in str(caught.value)


async def test_a_large_group_is_one_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        commits: list[int] = []
        metadata: Any = store.engine.database._metadata  # pyright: ignore[reportPrivateUsage]
        commit = metadata.commit
        metadata.commit = lambda: (commits.append(1), commit())
        await asyncio.gather(*(put(store, bucket, f"k{number}", b"1") for number in range(100)))
        assert len(commits) <= 25
        assert len(await keys(store, bucket)) == 100


async def test_a_store_is_verified_beside_its_gateway_and_not_backed_up(
    tmp_path: Path, postgresql_metadata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home" / "objects"
    async with opened(folder) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"1" * 100_000)
        create_file(folder / "store.key", KEY.hex())
        assert await verify(folder) == 0
        with psycopg.connect(postgresql_metadata.read_text()) as connection:
            connection.execute(b"UPDATE neocloud_objects.held SET bytes = bytes + 1")
        assert await verify(folder) == 1
        assert "+1 bytes more are counted" in capsys.readouterr().out
        done = back_up(folder, tmp_path / "backup", datetime.now(UTC), 1, lambda _: None)
        assert done.copied == done.blobs


async def test_no_page_scans_or_sorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        version = await put(store, bucket, "a/k", b"1")
        number = store.engine.bucket(bucket.id).number

        def fill(tx: Any) -> None:
            tx.connection.execute(
                "INSERT INTO version SELECT nextval('version_seq_seq'), ?,"
                " convert_to('b/' || n, 'UTF8'), md5('' || n), 0, 1, 0, 1, '', 0, NULL, 'STANDARD', NULL, 0,"
                " NULL, '[{},{},{}]', NULL, NULL, 0, '', NULL FROM generate_series(1, 20000) AS n",
                (number,),
            )

        await store.engine.database.write(fill)
        reading = store.engine.database.reading
        reading.execute("SET default_transaction_read_only = off")
        reading.execute("ANALYZE version")
        queries: list[tuple[str, Any]] = []
        execute = postgres_connection.ReadingConnection.execute

        def noting(self: Any, sql: str, parameters: Any = (), /) -> Any:
            queries.append((sql, parameters))
            return execute(self, sql, parameters)

        monkeypatch.setattr(postgres_connection.ReadingConnection, "execute", noting)
        await store.list_objects(bucket.id, prefix="a", delimiter="/", start_after="a")
        await store.list_objects(bucket.id)
        await store.list_versions(bucket.id, key_marker="a/k", version_marker=version.version_id)
        await store.head(bucket.id, "b/700")
        await store.head(bucket.id, "a/k", version.version_id)
        monkeypatch.undo()
        pages = [(sql, values) for sql, values in queries if "FROM version" in sql]
        assert len(pages) > 5
        for sql, values in pages:
            plan = " ".join(row[0] for row in reading.execute(f"EXPLAIN {sql}", values))
            assert "Index Scan" in plan and "Seq Scan" not in plan and "Sort" not in plan, (sql, plan)
