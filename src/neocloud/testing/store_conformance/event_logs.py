"""Conformance of logs of events: numbered without gaps, in one order for all readers, never changed."""

import asyncio
from datetime import UTC, datetime

from neocloud.core.store import LogEvent, Store, Transaction
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
