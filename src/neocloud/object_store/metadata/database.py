# pyright: strict
"""The metadata: one writer thread, which commits all waiting work together, and one reader.

Reads run in the thread of the event loop, on a connection of its own, and see what was committed; most take
some tens of microseconds in SQLite and some hundreds in PostgreSQL. A write returns when its commit is on the
disk.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from neocloud.core.clock import Clock
from neocloud.core.write_queue import Outcome, WriteQueue
from neocloud.object_store.errors import ObjectStoreError, StoreFull, StoreUnavailable
from neocloud.object_store.metadata import accesses, usage_counters
from neocloud.object_store.metadata.accesses import Accesses, Taken
from neocloud.object_store.metadata.connection import Connection, Metadata
from neocloud.object_store.metadata.known_buckets import KnownBuckets, StoredBuckets
from neocloud.object_store.metadata.transaction import Transaction

_Result = TypeVar("_Result")
_Work = Callable[[Transaction], object]
_Counted = dict[tuple[int, str, int], int]
"""Numbers by bucket, what is counted, and the hour."""


def _nothing() -> None:
    pass


class CommitUncertain(StoreUnavailable):
    """The disk failed within a commit: whether it is there will be known after the next start."""


class Database:
    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self.on_garbage: Callable[[], None] = _nothing
        """Called after a commit that made a blob garbage."""
        self.on_count: Callable[[], None] = _nothing
        """Called when something was counted or read that waits for a commit."""
        self._accesses = Accesses()
        self._totals: dict[int, int] = {}
        self._clock = clock
        self._metadata = metadata
        self._writing = metadata.writing
        self._pending: _Counted = {}
        self._pending_lock = threading.Lock()
        self.reading: Connection = metadata.reading
        """Used in the thread of the event loop alone, and never across an await."""
        self.buckets = StoredBuckets(self.reading) if metadata.is_shared else KnownBuckets(self.reading)
        self._commit_number = 0
        self._totals_at: dict[int, int] = {}
        self._queue: WriteQueue[_Work] = WriteQueue(self._run, "object-metadata")
        self._queue.start()

    async def close(self) -> None:
        if self._queue.is_open:
            with suppress(StoreUnavailable):
                await self.flush()
            await self._queue.stop()
        self._metadata.close()

    def open_reading(self) -> Connection:
        """Open another connection that reads, for another thread. Raises StoreUnavailable."""
        return self._metadata.open_reading()

    def count(self, bucket: int, sku: str, number: int) -> None:
        """Count in this hour, with the next commit."""
        now_ms = self.now_ms()
        place = (bucket, sku, now_ms - now_ms % usage_counters.HOUR_MS)
        with self._pending_lock:
            self._pending[place] = self._pending.get(place, 0) + number
        self.on_count()

    def note_access(self, seq: int, accessed_ms: int | None) -> None:
        """Remember a read of a version, with a later commit; `accessed_ms` is the last one written."""
        if self._accesses.note(seq, accessed_ms, self.now_ms()):
            self.on_count()

    async def flush(self) -> None:
        """Commit what was counted and read until now."""
        for _ in range(max(self._accesses.commits, int(bool(self._pending)))):
            await self.write(lambda _: None)

    async def write(
        self, work: Callable[[Transaction], _Result], then: Callable[[], None] = _nothing
    ) -> _Result:
        """Do this in a transaction, and return when it is on the disk, even if the caller is cancelled.

        `then` is called as soon as `total_bytes` knows what the work changed. An exception undoes this work
        alone. Raises StoreFull, StoreUnavailable.
        """
        return await asyncio.shield(asyncio.ensure_future(self._write(work, then)))

    async def _write(self, work: Callable[[Transaction], _Result], then: Callable[[], None]) -> _Result:
        if not self._queue.is_open:
            raise StoreUnavailable("The object store is being stopped. Try again.")
        result, commit, totals, has_garbage = await self._queue.submit(work)
        for bucket, total in totals.items():
            if self._totals_at.get(bucket, 0) <= commit:
                self._totals_at[bucket], self._totals[bucket] = commit, total
        then()
        if has_garbage:
            self.on_garbage()
        return result

    def total_bytes(self, bucket: int) -> int:
        """Return what a bucket holds as of the last commit that was answered."""
        if self._metadata.is_shared:
            return usage_counters.total_bytes(self.reading, bucket)
        if bucket not in self._totals:
            self._totals[bucket] = usage_counters.total_bytes(self.reading, bucket)
        return self._totals[bucket]

    def _run(self, works: Sequence[_Work]) -> Sequence[Outcome]:
        """Called in the writer thread."""
        with self._pending_lock:
            counted, self._pending = self._pending, {}
        taken = self._accesses.take()
        metadata = self._metadata
        try:
            metadata.begin()
            accesses.write(self._writing, taken)  # first, so that lifecycle rules see them
            outcomes = [self._in_savepoint(work) for work in works]
            for (bucket, sku, hour), number in counted.items():
                usage_counters.count(self._writing, bucket, sku, number, hour)
        except ObjectStoreError as error:
            return self._failed(works, counted, taken, error)
        except metadata.errors as error:
            return self._failed(works, counted, taken, metadata.explain(error))
        self._commit_number += 1
        try:
            metadata.commit()
        except metadata.errors as error:
            explained = metadata.explain(error)
            if not isinstance(explained, StoreFull):
                explained = CommitUncertain(str(explained))
            return self._failed(works, counted, taken, explained)
        return outcomes

    def _failed(
        self, works: Sequence[_Work], counted: _Counted, taken: Taken, error: ObjectStoreError
    ) -> Sequence[Outcome]:
        self._metadata.rollback()
        with self._pending_lock:
            for place, number in counted.items():
                self._pending[place] = self._pending.get(place, 0) + number
        self._accesses.put_back(taken)
        return [Outcome(error=error)] * len(works)

    def _in_savepoint(self, work: _Work) -> Outcome:
        self._writing.execute("SAVEPOINT work")
        tx = Transaction(self._writing, self.now_ms(), self._metadata.take_seq)
        try:
            result = work(tx)
            totals = tx.finish()
        except Exception as error:
            if isinstance(error, self._metadata.errors) and not self._metadata.is_of_one(error):
                raise
            self._writing.execute("ROLLBACK TO work")
            self._writing.execute("RELEASE work")
            return Outcome(error=error)
        self._writing.execute("RELEASE work")
        return Outcome((result, self._commit_number + 1, totals, tx.has_garbage))

    def now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


class ReadingDatabase(Database):
    """The database as other processes than the gateway read it. They see its commits and write nothing."""

    def __init__(self, open: Callable[[], Connection], clock: Clock) -> None:
        """`open` opens a connection. Raises StoreUnavailable as that does."""
        self._clock = clock
        self._open = open
        self.reading = open()

    def open_reading(self) -> Connection:
        return self._open()

    async def close(self) -> None:
        self.reading.close()

    async def write(self, work: Callable[[Transaction], _Result], then: Callable[[], None] = _nothing) -> Any:
        raise StoreUnavailable("This process only reads.")
