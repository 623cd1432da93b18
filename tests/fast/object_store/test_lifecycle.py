"""Lifecycle rules: what is due is done, once, and nothing else."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neocloud.object_gateway.work.workers import run_round
from neocloud.object_store.lifecycle import LifecycleAction, apply_lifecycle
from neocloud.object_store.lifecycle_rules import LifecycleFilter, LifecycleRule, Transition
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Attributes, Bucket, StorageClass, Versioning
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import (
    check_sums,
    files,
    keys,
    make_bucket,
    make_versioned,
    opened,
    put,
    put_part,
)

pytestmark = pytest.mark.usefixtures("metadata")

DAY = 86_400
START = datetime(2026, 1, 1, tzinfo=UTC)


async def apply(store: ObjectStore, bucket: Bucket) -> Mapping[LifecycleAction, int]:
    return await apply_lifecycle(store.engine, bucket.id, store.clock.now())


async def test_objects_expire_at_the_midnight_after(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        rule = LifecycleRule("r", filter=LifecycleFilter("logs/"), expire_days=2)
        bucket = await make_bucket(store, lifecycle=(rule,))
        await put(store, bucket, "logs/midnight", b"1")
        await clock.advance(3600)
        await put(store, bucket, "logs/later", b"1")
        await put(store, bucket, "kept", b"1")
        await clock.advance(2 * DAY - 3600 - 1)
        assert await apply(store, bucket) == {}
        await clock.advance(1)
        assert await apply(store, bucket) == {LifecycleAction.EXPIRE: 1}
        assert await keys(store, bucket) == ["kept", "logs/later"]
        await clock.advance(DAY)
        await run_round(store, clock)
        assert await keys(store, bucket) == ["kept"]
        assert await apply(store, bucket) == {}
    check_sums(tmp_path)


async def test_filters(tmp_path: Path) -> None:
    clock = FakeClock()
    filters = (LifecycleFilter(larger_than=10), LifecycleFilter(tags={"a": "1", "b": "2"}))
    rules = tuple(LifecycleRule(str(each), filter=each, expire_at=START) for each in filters)
    off = LifecycleRule("off", is_enabled=False, expire_at=START)
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store, lifecycle=(*rules, off))
        await put(store, bucket, "10", b"x" * 10)
        await put(store, bucket, "11", b"x" * 11)
        await put(store, bucket, "one tag", b"", Attributes(tags={"a": "1"}))
        await put(store, bucket, "all tags", b"", Attributes(tags={"a": "1", "b": "2", "c": "3"}))
        assert await apply(store, bucket) == {LifecycleAction.EXPIRE: 2}
        assert await keys(store, bucket) == ["10", "one tag"]


async def test_versions(tmp_path: Path) -> None:
    clock = FakeClock()
    rule = LifecycleRule(
        "r", expire_days=30, noncurrent_days=3, noncurrent_kept=1, expire_lone_delete_markers=True
    )
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store, lifecycle=(rule,))
        for number in range(4):
            await put(store, bucket, "k", bytes([number]))
        await clock.advance(4 * DAY)
        assert await apply(store, bucket) == {LifecycleAction.REMOVE: 2}
        await clock.advance(30 * DAY)
        assert await apply(store, bucket) == {LifecycleAction.EXPIRE: 1}
        await clock.advance(4 * DAY)
        assert await apply(store, bucket) == {LifecycleAction.REMOVE: 1}
        page = await store.list_versions(bucket.id)
        assert [each.is_delete_marker for each in page.versions] == [True, False]
        await store.delete(bucket.id, "k", page.versions[1].version_id)
        assert await apply(store, bucket) == {LifecycleAction.REMOVE: 1}
        assert await store.is_empty(bucket.id)
    check_sums(tmp_path)


async def test_many_versions_over_several_pages(tmp_path: Path) -> None:
    clock = FakeClock()
    rule = LifecycleRule("r", noncurrent_kept=2)
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store, lifecycle=(rule,))

        def work(tx) -> None:
            for seq in range(10, 1310):
                tx.connection.execute(
                    "INSERT INTO version VALUES (?, 1, ?, ?, 0, ?, 1, 0, '', 0, 0, 'STANDARD', NULL, 0, NULL,"
                    " '[{},{},{}]', NULL, NULL, 0, '', NULL)",
                    (seq, b"k%d" % (seq // 650), str(seq), int(seq in (649, 1299, 1309))),
                )

        await store.engine.database.write(work)
        await clock.advance(DAY)
        assert await apply(store, bucket) == {LifecycleAction.REMOVE: 640 + 650 + 10 - 3 * 3}


async def test_uploads_are_aborted_and_classes_changed(tmp_path: Path) -> None:
    clock = FakeClock()
    move = Transition(StorageClass.INTELLIGENT, days=1)
    rules = (
        LifecycleRule("abort", abort_upload_days=7),
        LifecycleRule("move", transition=move),
        LifecycleRule(
            "old",
            noncurrent_transition_days=1,
            noncurrent_transition_class=StorageClass.ENHANCED_THROUGHPUT,
        ),
    )
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store, lifecycle=rules)
        for _ in range(2):
            await put(store, bucket, "k", b"12345")
        upload = await store.create_upload(bucket.id, "u", Attributes())
        await put_part(store, bucket, "u", upload.upload_id, 1, b"x" * 100_000)
        await clock.advance(DAY)
        assert await apply(store, bucket) == {LifecycleAction.MOVE: 2}
        counters = {each.storage_class: each for each in store.counters(bucket.id)}
        assert counters[StorageClass.INTELLIGENT].simple_bytes == 5
        assert counters[StorageClass.ENHANCED_THROUGHPUT].noncurrent_simple_bytes == 5
        assert counters[StorageClass.STANDARD].bytes == 100_000
        await clock.advance(6 * DAY)
        assert await apply(store, bucket) == {LifecycleAction.ABORT: 1}
        assert (await store.list_uploads(bucket.id)).uploads == ()
        await run_round(store, clock)
    assert files(tmp_path) == []
    check_sums(tmp_path)


async def test_what_is_locked_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    rule = LifecycleRule("r", noncurrent_kept=0, noncurrent_days=1)
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store, lifecycle=(rule,), has_object_lock=True)
        await put(store, bucket, "k", b"1", Attributes(has_legal_hold=True))
        await put(store, bucket, "k", b"2")
        await put(store, bucket, "k", b"3")
        await clock.advance(2 * DAY)
        assert await apply(store, bucket) == {LifecycleAction.REMOVE: 1}
        assert [each.size for each in (await store.list_versions(bucket.id)).versions] == [1, 1]


async def test_a_round_closes_hours_and_forgets_old_completions(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store, versioning=Versioning.DISABLED)
        await put(store, bucket, "k", b"x" * 10)
        await clock.advance(3 * 3600)
        await run_round(store, clock)
        since = store.engine.database.reading.execute("SELECT since_ms FROM held").fetchone()
        assert since == ((START + timedelta(hours=3)).timestamp() * 1000,)
