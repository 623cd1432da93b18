"""The metadata: one writer thread, which commits all waiting work together, and one reader.

Reads run in the thread of the event loop, on a connection of its own, and see what was committed; most take
some tens of microseconds in SQLite and some hundreds in PostgreSQL. A write returns when its commit is on the
disk.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from neocloud.core.clock import Clock
from neocloud.core.write_queue import WriteOutcome, WriteQueue
from neocloud.object_store.errors import ObjectStoreError, StoreFull, StoreUnavailable
from neocloud.object_store.metadata import transaction
from neocloud.object_store.metadata.connection import Connection, Metadata
from neocloud.object_store.metadata.transaction import (
    BucketRow,
    Transaction,
    find_bucket,
    find_bucket_named,
    find_buckets,
)


class KnownBuckets:
    """The buckets, as of their last commit: every request needs one, and they rarely change. For the thread
    of the event loop alone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._by_id = {row.bucket.id: row for row in find_buckets(connection)}
        self._by_name = {row.bucket.name: row for row in self._by_id.values()}

    def find(self, bucket_id: str) -> BucketRow | None:
        return self._by_id.get(bucket_id)

    def number(self, bucket_id: str) -> int | None:
        found = self._by_id.get(bucket_id)
        return None if found is None else found.number

    def named(self, name: str) -> BucketRow | None:
        return self._by_name.get(name)

    def all(self) -> Sequence[BucketRow]:
        """Return all by name."""
        return [row for _, row in sorted(self._by_name.items())]

    def refresh(self, bucket_id: str) -> None:
        """Read a bucket again, that a commit may have changed."""
        old = self._by_id.pop(bucket_id, None)
        if old is not None and self._by_name.get(old.bucket.name) is old:
            del self._by_name[old.bucket.name]
        new = find_bucket(self._connection, bucket_id)
        if new is not None:
            self._by_id[bucket_id] = self._by_name[new.bucket.name] = new


class StoredBuckets:
    """Buckets read each time, where other gateways may change them, too. Their numbers never change."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}

    def find(self, bucket_id: str) -> BucketRow | None:
        found = find_bucket(self._connection, bucket_id)
        if found is None:
            self._numbers.pop(bucket_id, None)
        else:
            self._numbers[bucket_id] = found.number
        return found

    def number(self, bucket_id: str) -> int | None:
        """Return the number of a bucket as of when it was read last, also while the database is away."""
        known = self._numbers.get(bucket_id)
        if known is not None:
            return known
        found = self.find(bucket_id)
        return None if found is None else found.number

    def named(self, name: str) -> BucketRow | None:
        return find_bucket_named(self._connection, name)

    def all(self) -> Sequence[BucketRow]:
        """Return all by name."""
        return find_buckets(self._connection)

    def refresh(self, bucket_id: str) -> None:
        """Forget what is kept of a bucket."""
        self._numbers.pop(bucket_id, None)


DAY_MS = 86_400_000
MOST_WAITING = 100_000
"""Versions whose reads wait for a commit. While so many wait, as with a full disk, other reads are lost."""
MOST_IN_A_COMMIT = 2000
"""They delay what is written with them, by some tens of milliseconds."""
_SINCE = "last-access-since"
Taken = Sequence[tuple[int, int, int]]
"""The time, the number of the version, and the time again."""


class Accesses:
    """When versions were last read: gathered in memory, and written along with a later commit.

    One read of a version is written per day (UTC), which is what the rules count in. Reads that are not
    written when the process dies are lost; a lost read can change a storage class too early and never deletes
    anything. Noted in the thread of the event loop, taken in the writer thread.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        self._lock = threading.Lock()
        self._has_failed = False

    @property
    def commits(self) -> int:
        """Return how many commits will have taken what waits now."""
        waiting = len(self._waiting)
        return -(-waiting // MOST_IN_A_COMMIT) + int(self._has_failed and waiting > 0)

    def note(self, seq: int, accessed_ms: int | None, now_ms: int) -> bool:
        """Remember a read of a version; return whether something waits for a commit now. `accessed_ms` is the
        last read that is written."""
        if accessed_ms is not None and accessed_ms // DAY_MS >= now_ms // DAY_MS:
            return False
        with self._lock:
            if seq not in self._waiting and len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting[seq] = now_ms
        return True

    def take(self) -> Taken:
        """Take what goes with the next commit. After a commit that failed, the next one goes without: reads
        must not keep a full disk from being emptied."""
        if self._has_failed:
            self._has_failed = False
            return ()
        with self._lock:
            taken = list(islice(self._waiting.items(), MOST_IN_A_COMMIT))
            for seq, _ in taken:
                del self._waiting[seq]
        return [(at_ms, seq, at_ms) for seq, at_ms in sorted(taken)]

    def put_back(self, taken: Taken) -> None:
        """The commit failed."""
        self._has_failed = bool(taken)
        with self._lock:
            for at_ms, seq, _ in taken[: MOST_WAITING - len(self._waiting)]:
                self._waiting.setdefault(seq, at_ms)


def write_accesses(connection: Connection, taken: Taken) -> None:
    """Write reads of versions that are still there."""
    if taken:
        connection.executemany(
            "UPDATE version SET accessed_ms = ? WHERE seq = ? AND coalesce(accessed_ms, 0) < ?", taken
        )


def tracked_since_ms(connection: Connection) -> int:
    """Return since when reads are written; 0: since the first object."""
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (_SINCE,)).fetchone()
    return 0 if row is None else int(row[0])


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
        counter = (bucket, sku, now_ms - now_ms % transaction.HOUR_MS)
        with self._pending_lock:
            self._pending[counter] = self._pending.get(counter, 0) + number
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
            return transaction.total_bytes(self.reading, bucket)
        if bucket not in self._totals:
            self._totals[bucket] = transaction.total_bytes(self.reading, bucket)
        return self._totals[bucket]

    def _run(self, works: Sequence[_Work]) -> Sequence[WriteOutcome]:
        """Called in the writer thread."""
        with self._pending_lock:
            counted, self._pending = self._pending, {}
        taken = self._accesses.take()
        metadata = self._metadata
        try:
            metadata.begin()
            write_accesses(self._writing, taken)  # first, so that lifecycle rules see them
            outcomes = [self._in_savepoint(work) for work in works]
            for (bucket, sku, hour), number in counted.items():
                transaction.count(self._writing, bucket, sku, number, hour)
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
    ) -> Sequence[WriteOutcome]:
        self._metadata.rollback()
        with self._pending_lock:
            for counter, number in counted.items():
                self._pending[counter] = self._pending.get(counter, 0) + number
        self._accesses.put_back(taken)
        return [WriteOutcome(error=error)] * len(works)

    def _in_savepoint(self, work: _Work) -> WriteOutcome:
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
            return WriteOutcome(error=error)
        self._writing.execute("RELEASE work")
        return WriteOutcome((result, self._commit_number + 1, totals, tx.has_garbage))

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
