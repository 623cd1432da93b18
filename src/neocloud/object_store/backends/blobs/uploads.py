"""Unfinished multipart uploads of all buckets. Their parts are blobs: bodies (bodies/writer.py) or copies."""

from collections.abc import Sequence

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.writer import key_md5
from neocloud.object_store.errors import NoSuchUpload
from neocloud.object_store.metadata import lists, uploads
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.types import (
    ALWAYS,
    MAX_PAGE,
    UNCHECKED,
    Attributes,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Expected,
    ObjectVersion,
    PartPage,
    RequestClass,
    Upload,
    UploadPage,
    WriteConditions,
)


class Uploads:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create_upload(
        self,
        bucket_id: str,
        key: str,
        attributes: Attributes,
        *,
        algorithm: ChecksumAlgorithm | None = None,
        checksum_type: ChecksumType | None = None,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Upload:
        encoded = rules.key_bytes(key)
        self._engine.key_sealer(customer_key)

        def work(tx: Transaction) -> Upload:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            md5 = key_md5(customer_key)
            return uploads.create(tx, bucket, encoded, attributes, algorithm, checksum_type, md5)

        return await self._engine.database.write(work)

    async def upload(self, bucket_id: str, key: str, upload_id: str) -> Upload:
        """Raises NoSuchUpload."""
        bucket = self._engine.bucket(bucket_id)
        reading = self._engine.database.reading
        return uploads.find(reading, bucket, rules.key_bytes(key), upload_id).upload()

    async def complete_upload(
        self,
        bucket_id: str,
        key: str,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        expected: Expected = UNCHECKED,
        conditions: WriteConditions = ALWAYS,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """No byte moves."""
        encoded = rules.key_bytes(key)

        def work(tx: Transaction) -> ObjectVersion:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            try:
                upload = uploads.find(tx.connection, bucket, encoded, upload_id)
            except NoSuchUpload:
                version = uploads.completed_version(tx.connection, bucket, encoded, upload_id)
                if version is None:
                    raise
                return version
            return uploads.complete(tx, bucket, upload, parts, expected, conditions)

        return await self._engine.database.write(work)

    async def abort_upload(
        self,
        bucket_id: str,
        key: str,
        upload_id: str,
        *,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> None:
        """Raises NoSuchUpload."""
        encoded = rules.key_bytes(key)

        def work(tx: Transaction) -> None:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, request)
            uploads.abort(tx, uploads.find(tx.connection, bucket, encoded, upload_id))

        await self._engine.database.write(work)

    async def list_uploads(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        upload_marker: str = "",
        limit: int = MAX_PAGE,
    ) -> UploadPage:
        """Return uploads after an upload of a key; without `upload_marker`, after all uploads of it."""
        selection = lists.selection(prefix, delimiter, limit)
        bucket = self._engine.bucket(bucket_id)
        return lists.all_uploads(
            self._engine.database.reading, bucket, selection, rules.encode(key_marker), upload_marker
        )

    async def list_parts(
        self, bucket_id: str, key: str, upload_id: str, *, after: int = 0, limit: int = MAX_PAGE
    ) -> PartPage:
        """Return the parts of an unfinished upload. Raises NoSuchUpload."""
        reading = self._engine.database.reading
        upload = uploads.find(reading, self._engine.bucket(bucket_id), rules.key_bytes(key), upload_id)
        limit = rules.check_limit(limit)
        return lists.part_page(
            [row.part() for row in uploads.parts(reading, upload, after, limit + 1)], limit
        )
