"""Multipart uploads to filesystem buckets become files when they are completed.

Their parts lie in the object store. An upload that is completed is written to a file, which takes as long as
it is large.
"""

import asyncio
from collections.abc import Sequence

from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.files import records
from neocloud.object_store.backends.files.access import FileAccess
from neocloud.object_store.backends.files.files import BucketFiles
from neocloud.object_store.backends.files.records import FileRecord
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyWriter, pass_on
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.checksums import multipart_etag
from neocloud.object_store.errors import NoSuchUpload, ObjectStoreError
from neocloud.object_store.metadata import contents, uploads
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.metadata.uploads import MAX_OBJECT_BYTES, PartRow, UploadRow
from neocloud.object_store.types import (
    ALWAYS,
    UNCHECKED,
    Checksum,
    ChecksumType,
    CompletedPart,
    Expected,
    ObjectVersion,
    RequestClass,
    WriteConditions,
)


class UploadCompletion:
    def __init__(self, engine: Engine, access: FileAccess) -> None:
        self._engine = engine
        self._access = access
        self._completing: dict[tuple[str, str, str], asyncio.Task[ObjectVersion]] = {}
        """Tasks by bucket, key and upload. A client that asks again gets the result of the first request."""

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
        name = (bucket_id, key, upload_id)
        task = self._completing.get(name)
        if task is None:
            work = self._complete(bucket_id, key, upload_id, parts, expected, conditions, request)
            task = self._completing[name] = asyncio.ensure_future(work)
            task.add_done_callback(lambda _: self._completing.pop(name, None))
        return await self._engine.finish(task)

    async def _complete(
        self,
        bucket_id: str,
        key: str,
        upload_id: str,
        named: Sequence[CompletedPart],
        expected: Expected,
        conditions: WriteConditions,
        request: RequestClass | None,
    ) -> ObjectVersion:
        bucket, encoded = self._engine.bucket(bucket_id), rules.key_bytes(key)
        files = self._access.files(bucket_id)
        reading = self._engine.database.reading
        try:
            upload = uploads.find(reading, bucket, encoded, upload_id)
        except NoSuchUpload:
            if await self._is_completed(files, key, upload_id):
                return await self._access.in_thread(lambda: files.find(key))
            raise
        uploaded = {row.number: row for row in uploads.parts(reading, upload, 0, -1)}
        used, size, checksum = uploads.checked(uploaded, upload, named, expected)
        if not await self._is_completed(files, key, upload_id):
            await self._assemble(bucket_id, upload, used, size, checksum, conditions)

        def end(tx: Transaction) -> None:
            target = tx.bucket(bucket_id)
            tx.count(target.number, request)
            uploads.abort(tx, uploads.find(tx.connection, target, encoded, upload_id))

        await self._engine.database.write(end)
        return await self._access.in_thread(lambda: files.find(key))

    async def _is_completed(self, files: BucketFiles, key: str, upload_id: str) -> bool:
        """Return whether the file is what the upload became: its end is recorded after that."""
        try:
            return await self._access.in_thread(lambda: files.upload_id(key)) == upload_id
        except ObjectStoreError:
            return False

    async def _assemble(
        self,
        bucket_id: str,
        upload: UploadRow,
        used: Sequence[PartRow],
        size: int,
        checksum: Checksum,
        conditions: WriteConditions,
    ) -> None:
        key, attributes = upload.key.decode(), upload.upload().attributes
        record = FileRecord(
            multipart_etag([part.etag for part in used]),
            headers=attributes.headers,
            metadata=attributes.metadata,
            checksum=checksum,
            size=size,
            upload_id=upload.id,
        )
        shown = records.shown(key, record, self._engine.database.now_ms())
        is_whole = checksum.type is ChecksumType.FULL_OBJECT
        expected = Expected(checksum=checksum if is_whole else None, size=size)
        algorithms = [checksum.algorithm]
        async with self._access.writer(bucket_id, size, algorithms, MAX_OBJECT_BYTES) as writer:
            for part in used:
                await self._pass_part(part, shown, writer)
            await writer.commit_as(key, lambda: record, expected, conditions, None)

    async def _pass_part(self, part: PartRow, shown: ObjectVersion, writer: BodyWriter) -> None:
        spans = contents.spans(self._engine.database.reading, part.content, 0, part.size)
        async with Reader(self._engine, shown, 0, part.size, spans, self._engine.sealer) as reader:
            await reader.start()
            await pass_on(reader, writer)
