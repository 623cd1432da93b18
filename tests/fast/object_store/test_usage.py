"""Storage is billed by the byte and millisecond, requests by the piece, in the transaction of the change."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neocloud.object_store.errors import ConditionFailed
from neocloud.object_store.store import open_store
from neocloud.object_store.types import Attributes, RequestClass, StorageClass, WriteConditions
from neocloud.object_store.usage import BucketUsage, UsageReader
from neocloud.testing.waiting import FakeClock, until
from tests.fast.object_store import stores
from tests.fast.object_store.stores import KEY, check_sums, make_bucket, make_versioned, opened, put, put_part

pytestmark = pytest.mark.usefixtures("metadata")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000


class JumpingClock(FakeClock):
    """A clock that somebody sets."""

    offset = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.offset


def used(
    home: Path, clock: FakeClock, start: datetime = START, end: datetime = START + 100 * HOUR
) -> list[BucketUsage]:
    return list(UsageReader(home, clock).read(["project-a"], start, end))


def by_hour(found: list[BucketUsage], what: str) -> list[tuple[int, int]]:
    return [((each.hour - START) // HOUR, each.count) for each in found if each.what == what]


async def test_bytes_are_split_at_the_hours(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await clock.advance(1800)
        await put(store, bucket, "k", b"x" * 1000)
        await clock.advance(2 * 3600)
        await store.delete(bucket.id, "k")
        await clock.advance(3600)
        found = used(tmp_path, clock)
    expected = [(0, 1000 * HOUR_MS // 2), (1, 1000 * HOUR_MS), (2, 1000 * HOUR_MS // 2)]
    assert by_hour(found, "stored.STANDARD") == expected
    assert {(each.bucket_id, each.bucket_name, each.project_id) for each in found} == {
        (bucket.id, "bucket", "project-a")
    }
    assert not UsageReader(tmp_path, clock).read(["project-b"], START, START + 100 * HOUR)


async def test_what_is_held_counts_while_nothing_runs_and_reads_the_same_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        attributes = Attributes(storage_class=StorageClass.INTELLIGENT)
        await put(store, bucket, "k", b"x" * 1000, attributes)
    await clock.advance(5 * 3600 + 1800)
    found = used(tmp_path, clock)
    assert by_hour(found, "stored.INTELLIGENT") == [(hour, 1000 * HOUR_MS) for hour in range(5)]
    early, late = (START, START + 2 * HOUR), (START + 2 * HOUR, START + 5 * HOUR)
    assert used(tmp_path, clock, *early) + used(tmp_path, clock, *late) == found
    async with opened(tmp_path, clock) as store:
        await store.delete(bucket.id, "k")
        assert used(tmp_path, clock) == found


async def test_an_hour_is_read_when_it_is_over(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"x")
        await clock.advance(3600 + 59)
        assert used(tmp_path, clock) == []
        await clock.advance(1)
        assert by_hour(used(tmp_path, clock), "requests.modify") == [(0, 1)]


async def test_all_versions_and_parts_count(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store)
        await put(store, bucket, "k", b"x" * 100)
        await put(store, bucket, "k", b"x" * 10)
        upload = await store.create_upload(bucket.id, "u", Attributes())
        await put_part(store, bucket, "u", upload.upload_id, 1, b"x" * 5)
        await clock.advance(2 * 3600)
        assert by_hour(used(tmp_path, clock), "stored.STANDARD") == [(0, 115 * HOUR_MS)]
        (counters,) = store.counters(bucket.id)
        assert (counters.noncurrent_simple_bytes, counters.simple_bytes, counters.part_bytes) == (100, 10, 5)
        assert (counters.uploads, counters.parts, counters.bytes) == (1, 1, 115)


async def test_more_than_sqlite_can_add(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"x")
        size = 10**16

        def grow(tx) -> None:
            tx.connection.execute("UPDATE held SET bytes = ?", (size,))

        await store.engine.database.write(grow)
        await clock.advance(1800)
        await put(store, bucket, "k", b"x")
        await clock.advance(2 * 3600)
        assert by_hour(used(tmp_path, clock), "stored.STANDARD")[0] == (0, size * HOUR_MS)


async def test_requests_are_counted_with_what_they_did(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"1")
        with pytest.raises(ConditionFailed):
            await put(store, bucket, "k", b"1", conditions=WriteConditions(if_none_match="*"))
        await store.delete(bucket.id, "k")
        for _ in range(3):
            store.count(bucket.id, RequestClass.READ, egress_bytes=1000)
        store.count("storagebucket-gone", RequestClass.READ)
        await clock.advance(1)
        await until(lambda: _written(tmp_path, clock), "the reads are written")
        await clock.advance(2 * 3600)
        found = {each.what: each.count for each in used(tmp_path, clock) if "stored" not in each.what}
    assert found == {"requests.modify": 1, "requests.delete": 1, "requests.read": 3, "egress": 3000}


def _written(home: Path, clock: FakeClock) -> bool:
    later = FakeClock(clock.now() + 2 * HOUR)
    return any(each.what == "egress" for each in used(home, later))


async def test_reads_count_in_their_hour_however_late_they_are_written(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await clock.advance(3599)
        store.count(bucket.id, RequestClass.LIST)
        clock._seconds = 3 * 3600.0  # pyright: ignore[reportPrivateUsage]  nothing that sleeps wakes
        store.count(bucket.id, RequestClass.LIST)
        await store.flush()
        await clock.advance(2 * 3600)
        assert by_hour(used(tmp_path, clock), "requests.list") == [(0, 1), (3, 1)]


async def test_a_random_day_with_kills_and_jumps_of_the_clock(tmp_path: Path) -> None:
    """Recompute the bill from what the client knows. The clock is set back in it, and catches up."""
    random.seed(12)
    clock = JumpingClock()
    there: dict[str, int] = {}
    expected, billed_until = 0, clock.now()
    store = await open_store(tmp_path, KEY, clock, metadata=stores.metadata)
    bucket = await make_bucket(store)
    for step in range(150):
        if step in (60, 90):
            clock.offset += timedelta(hours=-1 if step == 60 else 1)
        if step % 40 == 39:
            await store.close()
            store = await open_store(tmp_path, KEY, clock, metadata=stores.metadata)
        await clock.advance(random.randrange(1, 1200))
        elapsed = max(timedelta(0), clock.now() - billed_until)
        billed_until = max(billed_until, clock.now())
        expected += sum(there.values()) * (elapsed // timedelta(milliseconds=1))
        key = random.choice("abcde")
        if random.random() < 0.3:
            await store.delete(bucket.id, key)
            there.pop(key, None)
        else:
            there[key] = random.randrange(1, 5000)
            await put(store, bucket, key, b"x" * there[key])
    for key in list(there):
        await store.delete(bucket.id, key)
    await store.close()
    await clock.advance(2 * 3600)
    found = used(tmp_path, clock)
    stored = [each.count for each in found if each.what == "stored.STANDARD"]
    assert min(stored) >= 0
    assert sum(stored) == expected
    check_sums(tmp_path)
