# pyright: strict
"""One piece of work within a write transaction: its time, its buckets, and its changes of what is held."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neocloud.object_store.errors import NoSuchBucket, QuotaExceeded
from neocloud.object_store.metadata import bucket_codec, usage_counters
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.types import Bucket, BucketState, RequestClass


@dataclass(frozen=True)
class BucketRow:
    number: int
    bucket: Bucket


class Transaction:
    """Used in the writer thread alone, until `finish`."""

    def __init__(self, connection: Connection, now_ms: int, take_seq: Callable[[], int]) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self.changes = usage_counters.Changes()
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
            usage_counters.count(self.connection, bucket, request_sku(request), 1, self.now_ms)

    def finish(self) -> Mapping[int, int]:
        """Apply the changes; return the bytes held by each bucket that changed. Raises QuotaExceeded."""
        self.changes.apply(self.connection, self.now_ms)
        totals: dict[int, int] = {}
        for bucket, growth in self.changes.growth().items():
            total = totals[bucket] = usage_counters.total_bytes(self.connection, bucket)
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


def request_sku(request: RequestClass) -> str:
    return f"requests.{request}"


def no_such_bucket() -> NoSuchBucket:
    return NoSuchBucket("The bucket does not exist.")


def quota_exceeded(limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"The bucket would hold more than its {limit:,} bytes. Delete objects, noncurrent versions or"
        " unfinished uploads, or raise max_size_bytes."
    )
