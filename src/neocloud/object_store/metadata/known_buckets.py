# pyright: strict
"""The buckets of the file, in memory: every request needs one, and they rarely change."""

from collections.abc import Sequence

from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.transaction import BucketRow, find_bucket, find_bucket_named, find_buckets


class KnownBuckets:
    """Buckets as of their last commit. Used in the thread of the event loop alone."""

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
