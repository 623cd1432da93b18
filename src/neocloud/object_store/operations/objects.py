# pyright: strict
"""Put, get, delete and change single objects."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.bodies.writer import MAX_BODY_BYTES, Writer, too_large
from neocloud.object_store.errors import Damaged, InvalidRequest, ObjectStoreError
from neocloud.object_store.last_access import AccessMethod, counts
from neocloud.object_store.metadata import rows, versions
from neocloud.object_store.metadata.rows import VersionRow
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.operations.base import Operations
from neocloud.object_store.types import (
    ALWAYS,
    READ_ALWAYS,
    ByteRange,
    ChecksumAlgorithm,
    Deleted,
    DeleteItem,
    ObjectVersion,
    ReadConditions,
    RequestClass,
    Retention,
    WriteConditions,
)

_LOOKS = 5
"""An object may be replaced between the look for its version and the one for its bytes, by another commit."""


class ObjectOperations(Operations):
    async def open_write(
        self,
        bucket_id: str,
        length: int | None,
        *,
        key: str | None = None,
        algorithms: Collection[ChecksumAlgorithm] = (),
        customer_key: bytes | None = None,
    ) -> BodyWriter:
        """Begin a body of a declared length; None: unknown. With `key`, the object that it replaces counts as
        room that becomes free. All algorithms that `Expected` will need have to be named here; CRC64NVME is
        always computed. Raises QuotaExceeded, TooLarge, InvalidRequest."""
        if length is not None and length > MAX_BODY_BYTES:
            raise too_large()
        bucket = self._engine.bucket(bucket_id)
        self._engine.key_sealer(customer_key)
        reservation = self._reserve(bucket, rules.key_bytes(key) if key else None, length)
        return Writer(self._engine, bucket, length, algorithms, customer_key, reservation)

    async def head(
        self, bucket_id: str, key: str, version_id: str | None = None, *, customer_key: bytes | None = None
    ) -> ObjectVersion:
        """Raises NoSuchKey, NoSuchVersion, IsDeleteMarker, WrongCustomerKey."""
        bucket, row = self._find(bucket_id, key, version_id, customer_key)
        return versions.show(row, bucket)

    async def find_version(self, bucket_id: str, key: str, version_id: str | None = None) -> ObjectVersion:
        """Return a version whose content is not needed, whatever key encrypts it. Raises as head."""
        bucket = self._engine.bucket(bucket_id)
        row = versions.find(self._engine.database.reading, bucket, rules.key_bytes(key), version_id)
        return versions.show(row, bucket)

    def note_access(
        self, bucket_id: str, version: ObjectVersion, method: AccessMethod, user_agent: str
    ) -> None:
        """Remember that a client read a version, where the filter of its bucket counts such reads. It is
        written with a later commit; what is pending in memory then is lost with the process."""
        bucket = self._engine.database.buckets.find(bucket_id)
        if bucket is not None and counts(bucket.bucket.access_filter, method, user_agent):
            self._engine.database.note_access(version.seq, version.accessed_ms)

    async def open_read(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        range: ByteRange | None = None,
        part_number: int | None = None,
        conditions: ReadConditions = READ_ALWAYS,
        customer_key: bytes | None = None,
    ) -> BodyReader:
        """Return a reader whose first MiB was verified. Use it as a context manager. Raises as head, and
        NotModified, ConditionFailed, RangeNotSatisfiable, InvalidPartNumber, Damaged."""
        looks = _LOOKS
        while True:
            looks -= 1
            bucket, row = self._find(bucket_id, key, version_id, customer_key)
            version = versions.show(row, bucket)
            rules.check_read(conditions, version)
            if part_number is not None:
                range = self._part_range(row, part_number)
            first, length = rules.resolve(range, row.size)
            try:
                reader = self._reader(bucket, row, first, length, customer_key, version)
                break
            except Damaged:
                if not looks:
                    raise
        try:
            await reader.start()
        except BaseException:
            await reader.close()
            raise
        return reader

    async def part_range(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        part_number: int,
        *,
        customer_key: bytes | None = None,
    ) -> tuple[ObjectVersion, ByteRange]:
        """Return what HEAD with a part number answers. Raises as head, and InvalidPartNumber."""
        bucket, row = self._find(bucket_id, key, version_id, customer_key)
        range = self._part_range(row, part_number) or ByteRange(0, max(row.size - 1, 0))
        return versions.show(row, bucket), range

    async def delete(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        conditions: WriteConditions = ALWAYS,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> Deleted:
        """Without a version id: remove the object, or with versioning write a delete marker. Deleting what
        does not exist succeeds. Raises ConditionFailed, NoSuchVersion (an id that no version can have),
        ObjectLocked."""
        item = DeleteItem(key, version_id, conditions)
        (result,) = await self.delete_many(
            bucket_id, [item], bypass_governance=bypass_governance, request=request
        )
        if isinstance(result, ObjectStoreError):
            raise result
        return result

    async def delete_many(
        self,
        bucket_id: str,
        items: Sequence[DeleteItem],
        *,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> Sequence[Deleted | ObjectStoreError]:
        """Delete each as `delete` does, in one transaction; what fails is returned in its place."""

        def work(tx: Transaction) -> Sequence[Deleted | ObjectStoreError]:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            return [_delete(tx, bucket, item, bypass_governance=bypass_governance) for item in items]

        return await self._engine.database.write(work)

    async def set_tags(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        tags: Mapping[str, str],
        *,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """Replace the tags of a version. Raises as head. Read them from `attributes.tags`."""

        def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
            attributes = replace(versions.show(row, bucket).attributes, tags=tags)
            return row._replace(attributes=rows.dump_attributes(attributes))

        return await self._change(bucket_id, key, version_id, change, request)

    async def set_retention(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        retention: Retention | None,
        *,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """Raises as head, ObjectLocked where the protection would become weaker, and InvalidRequest in a
        bucket without object lock."""

        def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
            _check_lock(bucket)
            if _is_weaker(row, retention):
                unheld = row._replace(legal_hold=0)
                versions.check_unlocked(tx, unheld, bypass_governance=bypass_governance)
            if retention is None:
                return row._replace(retention_mode=None, retention_ms=None)
            return row._replace(retention_mode=retention.mode, retention_ms=rows.to_ms(retention.until))

        return await self._change(bucket_id, key, version_id, change, request)

    async def set_legal_hold(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        is_held: bool,
        *,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """Raises as head, and InvalidRequest in a bucket without object lock."""

        def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
            _check_lock(bucket)
            return row._replace(legal_hold=int(is_held))

        return await self._change(bucket_id, key, version_id, change, request)

    async def _change(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        change: Callable[[Transaction, BucketRow, VersionRow], VersionRow],
        request: RequestClass | None,
    ) -> ObjectVersion:
        encoded = rules.key_bytes(key)

        def work(tx: Transaction) -> ObjectVersion:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            row = change(tx, bucket, versions.find(tx.connection, bucket, encoded, version_id))
            tx.connection.execute(
                "UPDATE version SET attributes = ?, retention_mode = ?, retention_ms = ?, legal_hold = ?"
                " WHERE seq = ?",
                (row.attributes, row.retention_mode, row.retention_ms, row.legal_hold, row.seq),
            )
            return versions.show(row, bucket)

        return await self._engine.database.write(work)


def _delete(
    tx: Transaction, bucket: BucketRow, item: DeleteItem, *, bypass_governance: bool
) -> Deleted | ObjectStoreError:
    """Each error comes before the first change, so there is nothing to undo."""
    try:
        key = rules.key_bytes(item.key)
        return versions.delete(tx, bucket, key, item, bypass_governance=bypass_governance)
    except ObjectStoreError as error:
        return error


def _check_lock(bucket: BucketRow) -> None:
    if not bucket.bucket.has_object_lock:
        raise InvalidRequest("The bucket has no object lock.")


def _is_weaker(row: VersionRow, retention: Retention | None) -> bool:
    """Return whether this makes a protection weaker, or changes its mode."""
    if row.retention_ms is None:
        return False
    if retention is None or rows.to_ms(retention.until) < row.retention_ms:
        return True
    return row.retention_mode != retention.mode
