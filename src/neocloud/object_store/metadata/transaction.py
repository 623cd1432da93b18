"""One piece of work within a write transaction: its time, its buckets, and its changes of what buckets hold.

The contents of buckets are counted for quotas and the bill: counters, byte-milliseconds by hour, requests.
Every change adds `bytes * (now - since)` to the hours that passed since the last change, then sets the new
numbers; so neither the counters nor the bill can differ from the objects. A clock that was set back adds
nothing until it has caught up; no time is counted twice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from neocloud.object_store.errors import NoSuchBucket, QuotaExceeded
from neocloud.object_store.metadata import bucket_codec
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import Bucket, BucketState, Counters, RequestClass

HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CounterKind(StrEnum):
    SIMPLE = "simple"
    MULTIPART = "multipart"
    NONCURRENT_SIMPLE = "noncurrent_simple"
    NONCURRENT_MULTIPART = "noncurrent_multipart"
    UPLOAD = "upload"
    PART = "part"


Change = tuple[int, StorageClass, CounterKind]
"""Bucket, class and kind that changed."""


def kind_of(is_latest: bool, part_count: int) -> CounterKind:
    if is_latest:
        return CounterKind.MULTIPART if part_count else CounterKind.SIMPLE
    return CounterKind.NONCURRENT_MULTIPART if part_count else CounterKind.NONCURRENT_SIMPLE


class Changes:
    """The changes of one piece of work, applied together at its end."""

    def __init__(self) -> None:
        self._changes: dict[Change, tuple[int, int]] = {}

    def add(
        self, bucket: int, storage_class: StorageClass, kind: CounterKind, number: int, size: int
    ) -> None:
        counter = (bucket, storage_class, kind)
        old_number, old_size = self._changes.get(counter, (0, 0))
        self._changes[counter] = (old_number + number, old_size + size)

    def growth(self) -> Mapping[int, int]:
        """Return by how many bytes each bucket grows that changes at all; negative where it shrinks."""
        grown: dict[int, int] = {}
        for (bucket, _, _), (_, size) in self._changes.items():
            grown[bucket] = grown.get(bucket, 0) + size
        return grown

    def apply(self, connection: Connection, now_ms: int) -> None:
        for (bucket, storage_class, kind), (number, size) in self._changes.items():
            if number or size:
                _change(connection, (bucket, storage_class, kind), number, size, now_ms)


def _change(connection: Connection, counter: Change, number: int, size: int, now_ms: int) -> None:
    where = "bucket = ? AND class = ? AND kind = ?"
    row = connection.execute(f"SELECT bytes, since_ms FROM held WHERE {where}", counter).fetchone()  # nosec B608
    if row is None:
        connection.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?)", (*counter, number, size, now_ms))
        return
    since = settle(connection, counter, row[0], row[1], now_ms)
    connection.execute(
        f"UPDATE held SET number = number + ?, bytes = bytes + ?, since_ms = ? WHERE {where}",  # nosec B608
        (number, size, since, *counter),
    )


def settle(connection: Connection, counter: Change, held_bytes: int, since_ms: int, now_ms: int) -> int:
    """Add the bytes that were held until now to their hours; return since when the rest counts."""
    if held_bytes:
        for hour, milliseconds in hours(since_ms, now_ms):
            _add(connection, counter, hour, held_bytes * milliseconds)
    return max(since_ms, now_ms)


def settle_all(connection: Connection, now_ms: int) -> None:
    """Settle what has not changed for more than an hour, so that no later change has many hours to add."""
    rows = connection.execute(
        "SELECT bucket, class, kind, bytes, since_ms FROM held WHERE since_ms < ?", (now_ms - HOUR_MS,)
    ).fetchall()
    for bucket, storage_class, kind, held_bytes, since in rows:
        counter = (bucket, StorageClass(storage_class), CounterKind(kind))
        since = settle(connection, counter, held_bytes, since, now_ms)
        connection.execute(
            "UPDATE held SET since_ms = ? WHERE bucket = ? AND class = ? AND kind = ?", (since, *counter)
        )


def hours(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """Return the starts of the hours of a stretch of time, each with the milliseconds in it."""
    while start_ms < end_ms:
        hour = start_ms - start_ms % HOUR_MS
        until = min(end_ms, hour + HOUR_MS)
        yield hour, until - start_ms
        start_ms = until


def _add(connection: Connection, counter: Change, hour: int, byte_ms: int) -> None:
    """Add in Python, since the sums of large buckets exceed SQLite's integers."""
    row = connection.execute(
        "SELECT byte_ms FROM stored_hour WHERE bucket = ? AND class = ? AND kind = ? AND hour = ?",
        (*counter, hour),
    ).fetchone()
    total = byte_ms + (int(row[0]) if row else 0)
    connection.execute(
        "INSERT INTO stored_hour VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (bucket, class, kind, hour) DO UPDATE SET byte_ms = excluded.byte_ms",
        (*counter, hour, str(total)),
    )


def count(connection: Connection, bucket: int, sku: str, number: int, now_ms: int) -> None:
    """Count requests or bytes of the current hour."""
    connection.execute(
        "INSERT INTO counted_hour VALUES (?, ?, ?, ?)"
        " ON CONFLICT (bucket, hour, sku) DO UPDATE SET count = counted_hour.count + excluded.count",
        (bucket, now_ms - now_ms % HOUR_MS, sku, number),
    )


def total_bytes(connection: Connection, bucket: int) -> int:
    row = connection.execute(
        "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM held WHERE bucket = ?", (bucket,)
    ).fetchone()
    return row[0]


def counters(connection: Connection, bucket: int) -> list[Counters]:
    found: dict[StorageClass, dict[str, int]] = {}
    rows = connection.execute("SELECT class, kind, number, bytes FROM held WHERE bucket = ?", (bucket,))
    for storage_class, kind, number, size in rows:
        fields = found.setdefault(StorageClass(storage_class), {})
        if kind == CounterKind.UPLOAD:
            fields["uploads"] = number
        elif kind == CounterKind.PART:
            fields |= {"parts": number, "part_bytes": size}
        else:
            fields |= {f"{kind}_objects": number, f"{kind}_bytes": size}
    return [Counters(each, **fields) for each, fields in sorted(found.items())]


@dataclass(frozen=True)
class BucketRow:
    number: int
    bucket: Bucket


class Transaction:
    """Used in the writer thread alone, until `finish`."""

    def __init__(self, connection: Connection, now_ms: int, take_seq: Callable[[], int]) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self.changes = Changes()
        self.take_seq = take_seq
        self.has_garbage = False
        """Whether a blob became garbage."""
        self._limits: dict[int, int] = {}

    def bucket(self, bucket_id: str) -> BucketRow:
        """Return an active bucket, whose quota then holds for this work. Raises NoSuchBucket."""
        row = self.any_bucket(bucket_id)
        if row.bucket.state is not BucketState.ACTIVE:
            raise no_such_bucket()
        self._limits[row.number] = row.bucket.max_size_bytes
        return row

    def any_bucket(self, bucket_id: str) -> BucketRow:
        row = find_bucket(self.connection, bucket_id)
        if row is None:
            raise no_such_bucket()
        return row

    def count(self, bucket: int, request: RequestClass | None) -> None:
        if request is not None:
            count(self.connection, bucket, request_sku(request), 1, self.now_ms)

    def finish(self) -> Mapping[int, int]:
        """Apply the changes; return the bytes held by each bucket that changed. Raises QuotaExceeded."""
        self.changes.apply(self.connection, self.now_ms)
        totals: dict[int, int] = {}
        for bucket, growth in self.changes.growth().items():
            total = totals[bucket] = total_bytes(self.connection, bucket)
            if growth > 0 and (limit := self._limits.get(bucket, 0)) and total > limit:
                raise quota_exceeded(limit)
        return totals


def find_bucket(connection: Connection, bucket_id: str) -> BucketRow | None:
    row = connection.execute(
        "SELECT number, settings, document FROM bucket WHERE id = ? AND forgotten_ms IS NULL", (bucket_id,)
    ).fetchone()
    return BucketRow(row[0], _decoded(*row)) if row else None


def find_bucket_named(connection: Connection, name: str) -> BucketRow | None:
    row = connection.execute(
        "SELECT number, settings, document FROM bucket WHERE name = ? AND forgotten_ms IS NULL", (name,)
    ).fetchone()
    return BucketRow(row[0], _decoded(*row)) if row else None


def find_buckets(connection: Connection) -> list[BucketRow]:
    rows = connection.execute(
        "SELECT number, settings, document FROM bucket WHERE forgotten_ms IS NULL ORDER BY name"
    )
    return [BucketRow(row[0], _decoded(*row)) for row in rows]


_MOST_DECODED = 10_000
_known: dict[int, tuple[bytes, bytes, Bucket]] = {}
"""Decoded buckets by number, since every transaction needs one."""


def _decoded(number: int, settings: bytes, document: bytes) -> Bucket:
    known = _known.get(number)
    if known is None or known[0] != settings or known[1] != document:
        if len(_known) >= _MOST_DECODED:
            _known.clear()
        known = _known[number] = (settings, document, bucket_codec.decode(settings, document))
    return known[2]


def to_time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def request_sku(request: RequestClass) -> str:
    return f"requests.{request}"


def no_such_bucket() -> NoSuchBucket:
    return NoSuchBucket("The bucket does not exist.")


def quota_exceeded(limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"The bucket would hold more than its {limit:,} bytes. Delete objects, noncurrent versions or"
        " unfinished uploads, or raise max_size_bytes."
    )
