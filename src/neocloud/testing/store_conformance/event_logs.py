# pyright: standard
"""Conformance of logs of events: numbered without gaps, in one order for all readers, never changed, and read
as before once they are archived."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from neocloud.core.store import LogEvent, StaleVersion, Store, StoreError, Transaction
from neocloud.core.store.event_log import Archive, Snapshot
from neocloud.testing.store_conformance.records import resource

NOW = datetime(2026, 11, 22, 1, 2, 3, 4567, tzinfo=UTC)
LOG = "pool-e00a"


def event(subject: str, body: bytes = b"{}") -> LogEvent:
    return LogEvent(subject, NOW, body)


class EventLogConformance:
    async def test_events_are_read_as_they_were_written(self, store: Store) -> None:
        assert await store.write(lambda tx: tx.append_event(LOG, event("a", b"\x00\xff"))) == 1
        assert await store.write(lambda tx: tx.append_event("pool-e00b", event("a"))) == 1
        assert await store.write(lambda tx: tx.append_event(LOG, event("b"))) == 2
        found = await store.read(lambda tx: tx.events(LOG))
        assert found == [LogEvent("a", NOW, b"\x00\xff", 1), LogEvent("b", NOW, b"{}", 2)]
        assert await store.read(lambda tx: tx.events("pool-e00c")) == []

    async def test_a_reader_goes_on_where_it_was(self, store: Store) -> None:
        def write(tx: Transaction) -> None:
            for number in range(7):
                tx.append_event(LOG, event("odd" if number % 2 else "even"))

        await store.write(write)
        after = await store.read(lambda tx: tx.events(LOG, after=2, limit=3))
        assert [each.position for each in after] == [3, 4, 5]
        of_one = await store.read(lambda tx: tx.events(LOG, subject="odd", after=2, limit=2))
        assert [each.position for each in of_one] == [4, 6]

    async def test_numbers_have_no_gaps_after_a_rollback(self, store: Store) -> None:
        def write_and_fail(tx: Transaction) -> None:
            tx.append_event(LOG, event("a"))
            raise RuntimeError("no")

        await asyncio.gather(store.write(write_and_fail), return_exceptions=True)
        assert await store.write(lambda tx: tx.append_event(LOG, event("b"))) == 1

    async def test_racing_writers_get_numbers_of_their_own(self, store: Store) -> None:
        found = await asyncio.gather(
            *(store.write(lambda tx: tx.append_event(LOG, event("a"))) for _ in range(30))
        )
        assert sorted(found) == list(range(1, 31))

    async def test_a_log_outlives_the_resource_of_its_name(self, store: Store) -> None:
        await store.write(lambda tx: tx.insert(resource("r1")))
        await store.write(lambda tx: tx.append_event("r1", event("a")))
        await store.write(lambda tx: tx.delete("r1"))
        assert len(await store.read(lambda tx: tx.events("r1"))) == 1

    async def test_archived_events_are_read_like_all_others(self, store: Store) -> None:
        written = await _write_days(store, 10)
        for days in (2, 5):
            old = await store.read(
                lambda tx, days=days: tx.oldest_events(LOG, NOW + timedelta(days=days), 99)
            )
            await store.write(lambda tx, old=old: tx.archive_events(LOG, Archive.of(old)))
        assert await store.read(lambda tx: tx.events(LOG)) == written
        for after in range(11):
            for limit in (1, 3, 99):
                found = await store.read(
                    lambda tx, after=after, limit=limit: tx.events(LOG, after=after, limit=limit)
                )
                assert list(found) == written[after : after + limit]
            of_one = await store.read(
                lambda tx, after=after: tx.events(LOG, subject="odd", after=after, limit=3)
            )
            assert list(of_one) == [each for each in written[after:] if each.subject == "odd"][:3]
        assert await store.write(lambda tx: tx.append_event(LOG, event("a"))) == 11

    async def test_the_last_event_of_a_log_and_newer_ones_are_not_old(self, store: Store) -> None:
        written = await _write_days(store, 4)
        far = NOW + timedelta(days=99)
        assert await store.read(lambda tx: tx.oldest_events(LOG, far, 99)) == written[:3]
        assert await store.read(lambda tx: tx.oldest_events(LOG, far, 2)) == written[:2]
        assert await store.read(lambda tx: tx.oldest_events(LOG, NOW, 99)) == []
        assert await store.read(lambda tx: tx.oldest_events("none", far, 99)) == []
        await store.write(lambda tx: tx.append_event(LOG, replace(written[0], subject="late")))
        found = await store.read(lambda tx: tx.oldest_events(LOG, NOW + timedelta(days=2), 99))
        assert found == written[:2], "a late event waits for those before it"

    async def test_only_the_oldest_events_are_archived_and_once(self, store: Store) -> None:
        written = await _write_days(store, 5)

        async def refused(events: Sequence[LogEvent]) -> None:
            with pytest.raises(StaleVersion):
                await store.write(lambda tx: tx.archive_events(LOG, Archive.of(events)))

        await refused(written[1:3])
        await refused(written)  # the next event would have the number 1
        await store.write(lambda tx: tx.archive_events(LOG, Archive.of(written[:2])))
        await refused(written[:2])
        assert await store.read(lambda tx: tx.events(LOG)) == written

    async def test_a_damaged_archive_is_no_empty_one(self, store: Store) -> None:
        written = await _write_days(store, 5)
        for number, body in enumerate((b"", Archive.of(written[:1]).body)):
            log = f"{LOG}-{number}"
            await _write_days(store, 5, log)
            broken = Archive(1, 2, body)
            await store.write(lambda tx, log=log, broken=broken: tx.archive_events(log, broken))
            with pytest.raises(StoreError, match="events 1 to 2"):
                await store.read(lambda tx, log=log: tx.events(log))
            assert len(await store.read(lambda tx, log=log: tx.events(log, after=2))) == 3

    async def test_the_last_snapshot_is_kept_until_the_log_is_forgotten(self, store: Store) -> None:
        written = await _write_days(store, 3)
        await store.write(lambda tx: tx.archive_events(LOG, Archive.of(written[:1])))
        await _write_days(store, 1, "another")
        for position in (2, 3):
            made = Snapshot(position, "v", b"body")
            await store.write(lambda tx, made=made: tx.put_snapshot(LOG, made))
        assert await store.read(lambda tx: tx.snapshot(LOG)) == Snapshot(3, "v", b"body")
        assert await store.read(lambda tx: tx.snapshot("another")) is None
        assert await store.read(lambda tx: tx.event_log_after("")) == "another"
        assert await store.read(lambda tx: tx.event_log_after("another")) == LOG
        await store.write(lambda tx: tx.forget_log(LOG))
        assert await store.read(lambda tx: tx.event_log_after("another")) is None
        assert await store.read(lambda tx: (tx.snapshot(LOG), tx.events(LOG))) == (None, [])
        assert len(await store.read(lambda tx: tx.events("another"))) == 1


async def _write_days(store: Store, number: int, log: str = LOG) -> list[LogEvent]:
    """Append an event for each day; return them as they are read."""
    events = [
        LogEvent("odd" if day % 2 else "even", NOW + timedelta(days=day), b"\x00\xff%d" % day, day + 1)
        for day in range(number)
    ]

    def write(tx: Transaction) -> None:
        for each in events:
            tx.append_event(log, each)

    await store.write(write)
    return events
