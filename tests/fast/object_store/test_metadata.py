"""Metadata: pages come from the index, however much there is beside them, and puts share their flushes."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_store.errors import StoreUnavailable
from neocloud.object_store.lifecycle_rules import LifecycleFilter, LifecycleRule, Transition
from neocloud.object_store.metadata import bucket_codec
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.sqlite import SqliteMetadata
from neocloud.object_store.types import DefaultRetention, RetentionMode, StorageClass, Versioning
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import desired, get, make_versioned, opened, put


async def test_puts_share_their_commits(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        statements: list[str] = []
        connection: Any = store.engine.database._writing  # pyright: ignore[reportPrivateUsage]
        connection.set_trace_callback(statements.append)
        await asyncio.gather(*(put(store, bucket, f"k{number}", b"1") for number in range(100)))
        connection.set_trace_callback(None)
        assert statements.count("COMMIT") <= 25
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2)):
            assert connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)


async def test_no_page_scans_or_sorts(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        version = await put(store, bucket, "a/k", b"1")
        await put(store, bucket, "a/k", b"2")
        queries: list[str] = []
        reading: Any = store.engine.database.reading
        reading.set_trace_callback(queries.append)
        await store.list_objects(bucket.id, prefix="a", delimiter="/", start_after="a")
        options: dict[str, Any] = {"key_marker": "a/k", "version_marker": version.version_id}
        await store.list_versions(bucket.id, **options)
        await store.list_versions(bucket.id, prefix="a", delimiter="/")
        await store.list_uploads(bucket.id, prefix="a", key_marker="b")
        await store.head(bucket.id, "a/k")
        await store.head(bucket.id, "a/k", version.version_id)
        await get(store, bucket, "a/k")
        reading.set_trace_callback(None)
        assert len(queries) > 10
        for query in queries:
            plan = [row[3] for row in reading.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert not [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step], (query, plan)


async def test_the_database_says_why_it_cannot_be_read(tmp_path: Path) -> None:
    database = Database(SqliteMetadata(tmp_path / "meta.db"), FakeClock())
    await database.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        database.reading.execute("SELECT 1")
    with pytest.raises(StoreUnavailable, match="being stopped"):
        await database.write(lambda _: None)


def test_buckets_are_kept_whole() -> None:
    now = desired().created_at
    rules = (
        LifecycleRule("a", filter=LifecycleFilter("p", 1, 2, {"t": "ä"}), expire_at=now, noncurrent_kept=3),
        LifecycleRule(
            "b",
            is_enabled=False,
            transition=Transition(StorageClass.INTELLIGENT, days=4),
            noncurrent_transition_class=StorageClass.STANDARD,
            abort_upload_days=5,
        ),
    )
    bucket = desired(
        versioning=Versioning.ENABLED,
        lifecycle=rules,
        document=b"\0\xff",
        force_storage_class=True,
        default_storage_class=StorageClass.ENHANCED_THROUGHPUT,
    )
    plain = bucket_codec.applied(bucket, None)
    locked = replace(
        plain, has_object_lock=True, default_retention=DefaultRetention(RetentionMode.COMPLIANCE, years=6)
    )
    for each in (plain, locked):
        assert bucket_codec.decode(bucket_codec.encode(each), each.document) == each
    assert bucket_codec.applied(bucket, locked) == locked, "the control plane does not know the lock"
