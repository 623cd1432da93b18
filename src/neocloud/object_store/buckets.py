"""Buckets as the control plane wants them, and what they hold."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.errors import BucketNotEmpty, InvalidRequest, NoSuchBucket, ObjectLocked
from neocloud.object_store.front_settings import FrontSettings
from neocloud.object_store.metadata import bucket_codec, repositories, transaction, uploads, versions
from neocloud.object_store.metadata.transaction import (
    BucketRow,
    Transaction,
    find_bucket,
    no_such_bucket,
    request_sku,
)
from neocloud.object_store.metadata.uploads import UploadRow
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.types import (
    EGRESS,
    EGRESS_PRIVATE,
    Bucket,
    BucketKind,
    BucketState,
    Counters,
    DefaultRetention,
    DesiredBucket,
    RequestClass,
    Versioning,
)

_Result = TypeVar("_Result")


class Buckets:
    """All buckets of a store, whatever keeps their objects."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def apply_bucket(self, desired: DesiredBucket) -> Bucket:
        """Create or change a bucket. Raises InvalidRequest where another bucket has the name."""

        def work(tx: Transaction) -> Bucket:
            found = find_bucket(tx.connection, desired.id)
            if found is not None and found.bucket.generation > desired.generation:
                return found.bucket
            _check_name(tx, desired)
            wanted = bucket_codec.applied(desired, found and found.bucket)
            was_versioned = found is not None and found.bucket.versioning is not Versioning.DISABLED
            if was_versioned and desired.versioning is Versioning.DISABLED:
                wanted = replace(wanted, versioning=Versioning.SUSPENDED)
            _check_settings(wanted)
            values = (
                *(wanted.name, wanted.project_id, wanted.generation),
                *(bucket_codec.encode(wanted), wanted.document),
            )
            if found is None:
                tx.connection.execute(
                    "INSERT INTO bucket (id, name, project_id, generation, settings, document)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (wanted.id, *values),
                )
            else:
                tx.connection.execute(
                    "UPDATE bucket SET name = ?, project_id = ?, generation = ?, settings = ?, document = ?"
                    " WHERE number = ?",
                    (*values, found.number),
                )
            return wanted

        return await self._change_bucket(desired.id, work)

    async def set_object_lock(self, bucket_id: str, retention: DefaultRetention | None) -> Bucket:
        """Let versions of a bucket be protected, new ones by default with this retention. It is never taken
        back. Raises NoSuchBucket, InvalidRequest without versioning."""

        def work(tx: Transaction) -> Bucket:
            row = tx.bucket(bucket_id)
            wanted = replace(row.bucket, has_object_lock=True, default_retention=retention)
            _check_settings(wanted)
            tx.connection.execute(
                "UPDATE bucket SET settings = ? WHERE number = ?", (bucket_codec.encode(wanted), row.number)
            )
            return wanted

        return await self._change_bucket(bucket_id, work)

    async def set_front(
        self, bucket_id: str, change: Callable[[FrontSettings], FrontSettings]
    ) -> FrontSettings:
        """Change the settings of the S3 front. Raises NoSuchBucket."""

        def work(tx: Transaction) -> FrontSettings:
            row = tx.bucket(bucket_id)
            wanted = replace(row.bucket, front=change(row.bucket.front))
            tx.connection.execute(
                "UPDATE bucket SET settings = ? WHERE number = ?", (bucket_codec.encode(wanted), row.number)
            )
            return wanted.front

        return await self._change_bucket(bucket_id, work)

    def buckets(self) -> Sequence[Bucket]:
        """Return all buckets, those scheduled for deletion included, by name."""
        return [row.bucket for row in self._engine.database.buckets.all()]

    def bucket(self, name: str, kind: BucketKind = BucketKind.S3) -> Bucket:
        """Return an active bucket by its name. Raises NoSuchBucket."""
        row = self._engine.database.buckets.named(name)
        if row is None or row.bucket.state is not BucketState.ACTIVE or row.bucket.kind is not kind:
            raise no_such_bucket()
        return row.bucket

    async def is_empty(self, bucket_id: str) -> bool:
        """Return whether a bucket in any state has no version, delete marker or unfinished upload."""
        row = self._any(bucket_id)
        return not _something(self._engine.database.reading.execute(_SOMETHING, (row.number,) * 2).fetchone())

    def is_protected(self, bucket_id: str) -> bool:
        """Return whether a retention period or a legal hold protects a version of a bucket in any state."""
        row = self._any(bucket_id)
        if not row.bucket.has_object_lock:
            return False
        found = self._engine.database.reading.execute(
            "SELECT EXISTS (SELECT 1 FROM version WHERE bucket = ? AND (legal_hold = 1 OR retention_ms > ?))",
            (row.number, self._engine.database.now_ms()),
        )
        return _something(found.fetchone())

    def has_versions(self, bucket_id: str) -> bool:
        """Return whether a bucket has versions or delete markers, which is what S3 counts as not empty."""
        found = self._engine.database.reading.execute(
            "SELECT EXISTS (SELECT 1 FROM version WHERE bucket = ?)", (self._any(bucket_id).number,)
        )
        return _something(found.fetchone())

    async def abort_uploads(self, bucket_id: str) -> None:
        """Abort all uploads of an active bucket. Raises NoSuchBucket."""

        def work(tx: Transaction) -> bool:
            number = tx.bucket(bucket_id).number
            found = list(uploads.select(tx.connection, "bucket = ? LIMIT ?", number, _ABORTED_AT_ONCE))
            for row in found:
                uploads.abort(tx, UploadRow._make(row))
            return bool(found)

        while await self._engine.database.write(work):
            pass

    async def purge_bucket(self, bucket_id: str, limit: int = 1000) -> bool:
        """Remove up to `limit` versions and uploads of any bucket; return whether it is empty then. Raises
        ObjectLocked where all that is left is protected."""

        def work(tx: Transaction) -> bool:
            number = tx.any_bucket(bucket_id).number
            found = tx.connection.execute(
                f"SELECT {versions.COLUMNS} FROM version"  # nosec B608
                " WHERE bucket = ? AND legal_hold = 0 AND coalesce(retention_ms, 0) <= ? LIMIT ?",
                (number, tx.now_ms, limit),
            ).fetchall()
            for row in found:
                versions.remove(tx, VersionRow._make(row), is_replaced=True)
            left = limit - len(found)
            aborted = list(uploads.select(tx.connection, "bucket = ? LIMIT ?", number, left))
            for row in aborted:
                uploads.abort(tx, UploadRow._make(row))
            is_some_left = repositories.purge(tx, number, limit)
            is_empty = not _something(tx.connection.execute(_SOMETHING, (number,) * 2).fetchone())
            if not (is_empty or found or aborted or is_some_left):
                raise ObjectLocked("Retention periods or legal holds protect versions of the bucket.")
            return is_empty and not is_some_left

        return await self._engine.database.write(work)

    async def forget_bucket(self, bucket_id: str) -> None:
        """Remove an empty bucket; its usage stays. Raises BucketNotEmpty."""

        def work(tx: Transaction) -> None:
            row = tx.any_bucket(bucket_id)
            if _something(tx.connection.execute(_SOMETHING, (row.number,) * 2).fetchone()):
                raise BucketNotEmpty("The bucket has versions, delete markers or unfinished uploads.")
            tx.connection.execute(
                "UPDATE bucket SET forgotten_ms = ? WHERE number = ?", (tx.now_ms, row.number)
            )
            tx.connection.execute("DELETE FROM completed WHERE bucket = ?", (row.number,))

        await self._change_bucket(bucket_id, work)

    def counters(self, bucket_id: str) -> Sequence[Counters]:
        """Return the counters of each class that a bucket in any state has or had something of."""
        return transaction.counters(self._engine.database.reading, self._any(bucket_id).number)

    def count(
        self,
        bucket_id: str,
        request: RequestClass | None,
        *,
        egress_bytes: int = 0,
        is_private: bool = False,
    ) -> None:
        """Count a request that wrote nothing, and bytes that were handed to the socket; `is_private`: to a
        client in a private network. It is on the disk with the next commit, at the latest after a second. A
        bucket that is gone counts nothing."""
        number = self._engine.database.buckets.number(bucket_id)
        if number is None:
            return
        if request is not None:
            self._engine.database.count(number, request_sku(request), 1)
        if egress_bytes:
            self._engine.database.count(number, EGRESS_PRIVATE if is_private else EGRESS, egress_bytes)

    async def _change_bucket(self, bucket_id: str, work: Callable[[Transaction], _Result]) -> _Result:
        """Write, and let what is known in memory follow, also where the caller is cancelled."""
        database = self._engine.database
        return await database.write(work, lambda: database.buckets.refresh(bucket_id))

    def _any(self, bucket_id: str) -> BucketRow:
        row = self._engine.database.buckets.find(bucket_id)
        if row is None:
            raise NoSuchBucket("The bucket does not exist.")
        return row


_ABORTED_AT_ONCE = 1000
_SOMETHING = (
    "SELECT EXISTS (SELECT 1 FROM version WHERE bucket = ?) OR EXISTS (SELECT 1 FROM upload WHERE bucket = ?)"
)


def _something(row: tuple[int]) -> bool:
    return bool(row[0])


def _check_name(tx: Transaction, desired: DesiredBucket) -> None:
    other = tx.connection.execute(
        "SELECT id FROM bucket WHERE name = ? AND id <> ? AND forgotten_ms IS NULL",
        (desired.name, desired.id),
    ).fetchone()
    if other is not None:
        raise InvalidRequest(f"Another bucket has the name {desired.name}.")
    gone = tx.connection.execute(
        "SELECT 1 FROM bucket WHERE id = ? AND forgotten_ms IS NOT NULL", (desired.id,)
    ).fetchone()
    if gone is not None:
        raise InvalidRequest("The bucket was purged, and its id is never used again.")


def _check_settings(wanted: Bucket) -> None:
    if wanted.has_object_lock and wanted.versioning is not Versioning.ENABLED:
        raise InvalidRequest("The bucket has object lock, which needs versioning: it cannot be suspended.")
    if wanted.state is BucketState.ACTIVE and wanted.max_size_bytes < 0:
        raise InvalidRequest("max_size_bytes cannot be negative.")
