# pyright: strict
"""Multipart uploads: create, complete, abort. Their parts are bodies (bodies/writer.py) or copies."""

from collections.abc import Sequence

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.writer import key_md5
from neocloud.object_store.errors import NoSuchUpload
from neocloud.object_store.metadata import uploads
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.operations.base import Operations
from neocloud.object_store.types import (
    ALWAYS,
    UNCHECKED,
    Attributes,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Expected,
    ObjectVersion,
    RequestClass,
    Upload,
    WriteConditions,
)


class UploadOperations(Operations):
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
        """Raises InvalidKey, InvalidRequest (an algorithm that does not have this type)."""
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
        """Make the parts an object; no byte moves. A repeated call returns the same version, while it
        is there and for a day. Raises NoSuchUpload, InvalidPart, InvalidPartOrder, PartTooSmall,
        ChecksumMismatch, ConditionFailed, NoSuchKey (If-Match on nothing), InvalidRequest, TooLarge."""
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
