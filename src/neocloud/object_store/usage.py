"""Reads what buckets used, by hour, from the metadata that the object store writes; another process may.

Only hours that are over are read, so reading twice reads the same. The contents of buckets count up to the
end of the last such hour, also while the object store does not run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import orjson

from neocloud.core.clock import Clock
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.location import reading
from neocloud.object_store.metadata.transaction import HOUR_MS, hours, to_ms, to_time
from neocloud.object_store.types import BucketKind

_GRACE_MS = 60_000
"""An hour is read so long after its end: what was counted in memory is written by then."""


@dataclass(frozen=True)
class BucketUsage:
    """The usage of a bucket in one hour. The bucket may be gone."""

    bucket_id: str
    bucket_name: str
    project_id: str
    hour: datetime
    """Its start, in UTC."""
    is_registry: bool
    what: str
    """"stored.STANDARD" (a storage class), "requests.read" (a RequestClass), "egress" or "egress-private"."""
    count: int
    """Byte-milliseconds of what was stored, requests, or bytes."""


class UsageReader:
    def __init__(self, home: Path, clock: Clock) -> None:
        """`home` is the folder of the object store."""
        self._home = home
        self._clock = clock

    def read(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Sequence[BucketUsage]:
        """Return the usage of the hours that begin in [start, end) and are over. It blocks."""
        now_ms = to_ms(self._clock.now().astimezone(UTC)) - _GRACE_MS
        first = _next_hour(to_ms(start.astimezone(UTC)))
        last = min(_next_hour(to_ms(end.astimezone(UTC))), now_ms - now_ms % HOUR_MS)
        with reading(self._home, "bucket") as connection:
            if connection is None or first >= last or not project_ids:
                return ()
            buckets = _buckets(connection, project_ids)
            sums: dict[tuple[int, int, str], int] = {}
            for counter, count in (*_counted(connection, first, last), *_stored(connection, first, last)):
                if counter[0] in buckets and count:
                    sums[counter] = sums.get(counter, 0) + count
        return [
            _usage(buckets[bucket], to_time(hour), what, count)
            for (bucket, hour, what), count in sorted(sums.items())
        ]


def _usage(bucket: "_Bucket", hour: datetime, what: str, count: int) -> BucketUsage:
    return BucketUsage(bucket.id, bucket.name, bucket.project_id, hour, bucket.is_registry, what, count)


class _Bucket(NamedTuple):
    id: str
    name: str
    project_id: str
    is_registry: bool


_Place = tuple[int, int, str]
"""Bucket, hour and what was used."""


def _buckets(connection: Connection, project_ids: Sequence[str]) -> dict[int, _Bucket]:
    marks = ", ".join("?" * len(project_ids))
    rows = connection.execute(
        f"SELECT number, id, name, project_id, settings FROM bucket WHERE project_id IN ({marks})",  # nosec B608
        tuple(project_ids),
    )
    found: dict[int, _Bucket] = {}
    for number, id, name, project_id, settings in rows:
        described = orjson.loads(settings)
        is_registry = described.get("kind") == BucketKind.REGISTRY
        found[number] = _Bucket(id, described.get("title") or name, project_id, is_registry)
    return found


def _counted(connection: Connection, first: int, last: int) -> Iterable[tuple[_Place, int]]:
    rows = connection.execute(
        "SELECT bucket, hour, sku, count FROM counted_hour WHERE hour >= ? AND hour < ?", (first, last)
    )
    for bucket, hour, sku, count in rows:
        yield (bucket, hour, sku), count


def _stored(connection: Connection, first: int, last: int) -> Iterable[tuple[_Place, int]]:
    rows = connection.execute(
        "SELECT bucket, hour, class, byte_ms FROM stored_hour WHERE hour >= ? AND hour < ?", (first, last)
    )
    for bucket, hour, storage_class, byte_ms in rows:
        yield (bucket, hour, f"stored.{storage_class}"), int(byte_ms)
    rows = connection.execute(
        "SELECT bucket, class, bytes, since_ms FROM held WHERE bytes > 0 AND since_ms < ?", (last,)
    )
    for bucket, storage_class, held_bytes, since_ms in rows:
        for hour, milliseconds in hours(max(since_ms, first), last):
            yield (bucket, hour, f"stored.{storage_class}"), held_bytes * milliseconds


def _next_hour(at_ms: int) -> int:
    """Return the first hour that begins at this time or later."""
    return -(-at_ms // HOUR_MS) * HOUR_MS
