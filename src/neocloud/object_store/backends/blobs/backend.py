"""Buckets whose objects are blobs: put, get, delete, change and list versions."""

from collections.abc import Collection, Sequence

from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.blobs.access import BlobAccess
from neocloud.object_store.backends.blobs.uploads import Uploads
from neocloud.object_store.backends.protocol import VersionChange
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.bodies.reader import started
from neocloud.object_store.bodies.writer import Writer, check_length, reserve
from neocloud.object_store.errors import Damaged, ObjectStoreError
from neocloud.object_store.metadata import lists, versions
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, to_time
from neocloud.object_store.types import (
    MAX_PAGE,
    READ_ALWAYS,
    ByteRange,
    ChecksumAlgorithm,
    Deleted,
    DeleteItem,
    ListPage,
    ObjectVersion,
    Part,
    PartPage,
    ReadConditions,
    RequestClass,
    VersionPage,
)

_LOOKS = 5
"""An object may be replaced between the look for its version and the one for its bytes, by another commit."""


class BlobBackend:
    """A `BucketBackend`."""

    keeps_tags: bool = True

    def __init__(self, engine: Engine, access: BlobAccess, uploads: Uploads) -> None:
        self._engine = engine
        self._access = access
        self.create_upload = uploads.create_upload
        self.complete_upload = uploads.complete_upload

    async def open_write(
        self,
        bucket_id: str,
        length: int | None,
        *,
        key: str | None = None,
        algorithms: Collection[ChecksumAlgorithm] = (),
        customer_key: bytes | None = None,
    ) -> BodyWriter:
        check_length(length)
        bucket = self._engine.bucket(bucket_id)
        self._engine.key_sealer(customer_key)
        reservation = reserve(self._engine, bucket, rules.key_bytes(key) if key else None, length)
        return Writer(self._engine, bucket, length, algorithms, customer_key, reservation)

    async def head(
        self, bucket_id: str, key: str, version_id: str | None = None, *, customer_key: bytes | None = None
    ) -> ObjectVersion:
        bucket, row = self._access.find(bucket_id, key, version_id, customer_key)
        return versions.show(row, bucket)

    async def find_version(self, bucket_id: str, key: str, version_id: str | None = None) -> ObjectVersion:
        bucket = self._engine.bucket(bucket_id)
        row = versions.find(self._engine.database.reading, bucket, rules.key_bytes(key), version_id)
        return versions.show(row, bucket)

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
        looks = _LOOKS
        while True:
            looks -= 1
            bucket, row = self._access.find(bucket_id, key, version_id, customer_key)
            version = versions.show(row, bucket)
            rules.check_read(conditions, version)
            if part_number is not None:
                range = self._access.part_range(row, part_number)
            first, length = rules.resolve(range, row.size)
            try:
                reader = self._access.reader(bucket, row, first, length, customer_key, version)
                break
            except Damaged:
                if not looks:
                    raise
        return await started(reader)

    async def part_range(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        part_number: int,
        *,
        customer_key: bytes | None = None,
    ) -> tuple[ObjectVersion, ByteRange]:
        bucket, row = self._access.find(bucket_id, key, version_id, customer_key)
        range = self._access.part_range(row, part_number) or ByteRange(0, max(row.size - 1, 0))
        return versions.show(row, bucket), range

    async def delete_many(
        self,
        bucket_id: str,
        items: Sequence[DeleteItem],
        *,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> Sequence[Deleted | ObjectStoreError]:

        def work(tx: Transaction) -> Sequence[Deleted | ObjectStoreError]:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            return [_delete(tx, bucket, item, bypass_governance=bypass_governance) for item in items]

        return await self._engine.database.write(work)

    async def change_version(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        change: VersionChange,
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

    async def list_objects(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_after: str = "",
        limit: int = MAX_PAGE,
    ) -> ListPage:
        selection = lists.selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.objects(self._engine.database.reading, bucket, selection, rules.encode(start_after))

    async def list_versions(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        version_marker: str = "",
        limit: int = MAX_PAGE,
    ) -> VersionPage:
        selection = lists.selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.all_versions(
            self._engine.database.reading, bucket, selection, rules.encode(key_marker), version_marker
        )

    async def parts_of(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        customer_key: bytes | None = None,
    ) -> PartPage:
        _, row = self._access.find(bucket_id, key, version_id, customer_key)
        limit = rules.check_limit(limit)
        found = self._engine.database.reading.execute(
            "SELECT number, size, etag, modified_ms, checksum FROM object_part"
            " WHERE content = ? AND number > ? ORDER BY number LIMIT ?",
            (row.content, after, limit + 1),
        )
        parts = [
            Part(number, size, etag, to_time(modified_ms), versions.load_checksum(checksum))
            for number, size, etag, modified_ms, checksum in found
        ]
        return lists.part_page(parts, limit)


def _delete(
    tx: Transaction, bucket: BucketRow, item: DeleteItem, *, bypass_governance: bool
) -> Deleted | ObjectStoreError:
    """Each error comes before the first change, so there is nothing to undo."""
    try:
        key = rules.key_bytes(item.key)
        return versions.delete(tx, bucket, key, item, bypass_governance=bypass_governance)
    except ObjectStoreError as error:
        return error
