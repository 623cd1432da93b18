# pyright: strict
"""The methods of the object store on filesystem buckets: copies and multipart uploads, beside `objects`.

Unfinished uploads are those of any bucket: their parts lie in the object store, out of sight of the
filesystem. An upload that is completed is written to a file, which takes as long as it is large.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.checksums import DEFAULT, multipart_etag
from neocloud.object_store.errors import NoSuchUpload, ObjectStoreError, RangeNotSatisfiable
from neocloud.object_store.filesystems import records
from neocloud.object_store.filesystems.files import BucketFiles
from neocloud.object_store.filesystems.objects import FilesystemObjects
from neocloud.object_store.filesystems.paths import place_of
from neocloud.object_store.filesystems.records import Record, check_attributes, check_key
from neocloud.object_store.metadata import contents, uploads
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.metadata.uploads import MAX_OBJECT_BYTES, PartRow, UploadRow
from neocloud.object_store.operations.copies import CopyOperations
from neocloud.object_store.operations.uploads import UploadOperations
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    ALWAYS,
    READ_ALWAYS,
    UNCHECKED,
    Attributes,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Expected,
    ObjectVersion,
    Part,
    ReadConditions,
    RequestClass,
    Source,
    Upload,
    WriteConditions,
)


class FilesystemOperations(FilesystemObjects, CopyOperations, UploadOperations):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._completing: dict[tuple[str, str, str], asyncio.Task[ObjectVersion]] = {}
        """By bucket, key and upload. A client that asks again gets the result of the first request."""

    async def copy(
        self,
        source: Source,
        bucket_id: str,
        key: str,
        *,
        attributes: Attributes | None = None,
        tags: Mapping[str, str] | None = None,
        storage_class: StorageClass | None = None,
        algorithm: ChecksumAlgorithm | None = None,
        source_conditions: ReadConditions = READ_ALWAYS,
        conditions: WriteConditions = ALWAYS,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """The bytes are copied where one of the buckets is a filesystem. A file gets no tags."""
        origin, target = self.files(source.bucket_id), self.files(bucket_id)
        if origin is None and target is None:
            return await super().copy(
                source,
                bucket_id,
                key,
                attributes=attributes,
                tags=tags,
                storage_class=storage_class,
                algorithm=algorithm,
                source_conditions=source_conditions,
                conditions=conditions,
                customer_key=customer_key,
                request=request,
            )
        async with await self._open_source(source, None, source_conditions) as reader:
            found = reader.version
            kept = found.attributes
            wanted = attributes or Attributes(kept.headers, kept.metadata, storage_class=storage_class)
            if target is None:
                wanted = replace(wanted, tags=kept.tags if tags is None else tags)
            else:
                wanted = replace(wanted, tags=tags or {})
            stored = algorithm or _full_algorithm(found.checksum)
            async with await self.open_write(
                bucket_id, found.size, key=key, algorithms=[stored], customer_key=customer_key
            ) as writer:
                await _pass_on(reader, writer)
                return await writer.commit(
                    key, wanted, expected=Expected(stored=stored), conditions=conditions, request=request
                )

    async def copy_part(
        self,
        source: Source,
        bucket_id: str,
        key: str,
        upload_id: str,
        number: int,
        *,
        range: ByteRange | None = None,
        source_conditions: ReadConditions = READ_ALWAYS,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Part:
        if self.files(source.bucket_id) is None:
            return await super().copy_part(
                source,
                bucket_id,
                key,
                upload_id,
                number,
                range=range,
                source_conditions=source_conditions,
                customer_key=customer_key,
                request=request,
            )
        upload = await self.upload(bucket_id, key, upload_id)
        stored = upload.checksum_algorithm or DEFAULT
        async with await self._open_source(source, range, source_conditions) as reader:
            size = reader.version.size
            if range is not None and range.last is not None and range.last >= size:
                raise RangeNotSatisfiable(f"The source has {size:,} bytes; the range ends behind them.", size)
            async with await self.open_write(
                bucket_id, reader.length, algorithms=[stored], customer_key=customer_key
            ) as writer:
                await _pass_on(reader, writer)
                return await writer.commit_part(key, upload_id, number, request=request)

    async def _open_source(
        self, source: Source, range: ByteRange | None, conditions: ReadConditions
    ) -> BodyReader:
        reader = await self.open_read(
            source.bucket_id, source.key, source.version_id, range=range, customer_key=source.customer_key
        )
        try:
            rules.check_source(conditions, reader.version)
        except BaseException:
            await reader.close()
            raise
        return reader

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
        if self.files(bucket_id) is not None:
            check_attributes(attributes)
            check_key(customer_key)
            place_of(key)
        return await super().create_upload(
            bucket_id,
            key,
            attributes,
            algorithm=algorithm,
            checksum_type=checksum_type,
            customer_key=customer_key,
            request=request,
        )

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
        files = self.files(bucket_id)
        if files is None:
            return await super().complete_upload(
                bucket_id, key, upload_id, parts, expected=expected, conditions=conditions, request=request
            )
        place = (bucket_id, key, upload_id)
        task = self._completing.get(place)
        if task is None:
            work = self._complete(files, bucket_id, key, upload_id, parts, expected, conditions, request)
            task = self._completing[place] = asyncio.ensure_future(work)
            task.add_done_callback(lambda _: self._completing.pop(place, None))
        return await self._engine.finish(task)

    async def _complete(
        self,
        files: BucketFiles,
        bucket_id: str,
        key: str,
        upload_id: str,
        named: Sequence[CompletedPart],
        expected: Expected,
        conditions: WriteConditions,
        request: RequestClass | None,
    ) -> ObjectVersion:
        bucket, encoded = self._engine.bucket(bucket_id), rules.key_bytes(key)
        reading = self._engine.database.reading
        try:
            upload = uploads.find(reading, bucket, encoded, upload_id)
        except NoSuchUpload:
            if await self._is_completed(files, key, upload_id):
                return await self.head(bucket_id, key)
            raise
        uploaded = {row.number: row for row in uploads.parts(reading, upload, 0, -1)}
        used, size, checksum = uploads.checked(uploaded, upload, named, expected)
        if not await self._is_completed(files, key, upload_id):
            await self._assemble(files, bucket_id, upload, used, size, checksum, conditions)

        def end(tx: Transaction) -> None:
            target = tx.bucket(bucket_id)
            tx.count(target.number, request)
            uploads.abort(tx, uploads.find(tx.connection, target, encoded, upload_id))

        await self._engine.database.write(end)
        return await self.head(bucket_id, key)

    async def _is_completed(self, files: BucketFiles, key: str, upload_id: str) -> bool:
        """Return whether the file is what the upload became: its end is recorded after that."""
        try:
            return await self.in_file_thread(lambda: files.upload_id(key)) == upload_id
        except ObjectStoreError:
            return False

    async def _assemble(
        self,
        files: BucketFiles,
        bucket_id: str,
        upload: UploadRow,
        used: Sequence[PartRow],
        size: int,
        checksum: Checksum,
        conditions: WriteConditions,
    ) -> None:
        key, attributes = upload.key.decode(), upload.upload().attributes
        record = Record(
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
        async with self.file_writer(bucket_id, files, size, algorithms, MAX_OBJECT_BYTES) as writer:
            for part in used:
                await self._pass_part(part, shown, writer)
            await writer.commit_as(key, lambda: record, expected, conditions, None)

    async def _pass_part(self, part: PartRow, shown: ObjectVersion, writer: BodyWriter) -> None:
        spans = contents.spans(self._engine.database.reading, part.content, 0, part.size)
        async with Reader(self._engine, shown, 0, part.size, spans, self._engine.sealer) as reader:
            await reader.start()
            await _pass_on(reader, writer)


async def _pass_on(reader: BodyReader, writer: BodyWriter) -> None:
    async for chunk in reader:
        await writer.write(chunk)


def _full_algorithm(checksum: Checksum | None) -> ChecksumAlgorithm:
    """Return the algorithm of the copy's checksum: that of its source, where it has one."""
    return DEFAULT if checksum is None else checksum.algorithm
