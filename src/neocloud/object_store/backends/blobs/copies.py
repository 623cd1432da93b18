"""Copies of objects and of ranges of them, by reference: no byte moves.

Bytes move only where the copy is to be encrypted by another key. They are read for a checksum that the
source does not have, and for the ETag of a part.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.blobs.access import BlobAccess
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import pass_on
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.bodies.writer import Writer, key_md5, reserve
from neocloud.object_store.checksums import DEFAULT, Digests
from neocloud.object_store.errors import InvalidRequest, NoSuchKey, StoreBusy
from neocloud.object_store.metadata import contents, uploads, versions
from neocloud.object_store.metadata.contents import Piece
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.metadata.uploads import PartRow
from neocloud.object_store.metadata.versions import NewVersion, VersionRow
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    ALWAYS,
    READ_ALWAYS,
    Attributes,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    Expected,
    ObjectVersion,
    Part,
    ReadConditions,
    RequestClass,
    Source,
    WriteConditions,
)

ATTEMPTS = 10
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _SourceChanged(NoSuchKey):
    """The version that was to be copied is gone: replaced by another one, or deleted."""


def _of_what_is_there(
    copy: Callable[_Arguments, Coroutine[object, None, _Result]],
) -> Callable[_Arguments, Coroutine[object, None, _Result]]:
    """Copy again where the source was replaced meanwhile: a key that always had an object is never absent.
    Where it was deleted, looking for it again raises."""

    @wraps(copy)
    async def repeated(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        for _ in range(ATTEMPTS):
            try:
                return await copy(*arguments, **options)
            except _SourceChanged:
                continue
        raise StoreBusy("The source is replaced again and again. Nothing was copied. Try again later.")

    return repeated


class BlobCopies:
    """A `Copies` between buckets whose objects are blobs; a part may be of any bucket."""

    def __init__(self, engine: Engine, access: BlobAccess) -> None:
        self._engine = engine
        self._access = access

    @_of_what_is_there
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
        row, version = self._source(source, source_conditions)
        bucket = self._engine.bucket(bucket_id)
        encoded = rules.key_bytes(key)
        if attributes is None:
            kept = version.attributes
            attributes = Attributes(kept.headers, kept.metadata, kept.tags, storage_class)
            attributes = attributes if tags is None else replace(attributes, tags=tags)
        else:
            attributes = replace(attributes, tags=version.attributes.tags if tags is None else tags)
        if key_md5(customer_key) != row.customer_key_md5:
            return await self._rewrite(
                source, row, version, bucket, key, attributes, algorithm, conditions, customer_key, request
            )
        checksum = await self._checksum(source, row, version, algorithm)
        new = NewVersion(
            encoded,
            row.size,
            row.etag,
            row.content or 0,
            attributes,
            checksum,
            row.part_count,
            row.customer_key_md5,
        )

        def work(tx: Transaction) -> ObjectVersion:
            target = tx.bucket(bucket_id)
            tx.count(target.number, request)
            if versions.select(tx.connection, "seq = ?", (row.seq,)) is None:
                raise _SourceChanged("The source was replaced meanwhile.")
            contents.share(tx, new.content)
            return versions.put(tx, target, new, conditions)

        reservation = reserve(self._engine, bucket, encoded, row.size)
        try:
            return await self._engine.database.write(work, reservation.release)
        finally:
            reservation.release()

    @_of_what_is_there
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
        """The bytes are read once, for the ETag."""
        row, _ = self._source(source, source_conditions)
        bucket = self._engine.bucket(bucket_id)
        encoded = rules.key_bytes(key)
        upload = uploads.find(self._engine.database.reading, bucket, encoded, upload_id)
        if upload.customer_key_md5 != key_md5(customer_key):
            raise InvalidRequest("The part has to be encrypted by the key that the upload began with.")
        rules.check_source_range(range, row.size)
        first, length = rules.resolve(range, row.size)
        algorithm = DEFAULT if upload.algorithm is None else ChecksumAlgorithm(upload.algorithm)
        origin = self._engine.bucket(source.bucket_id)
        reservation = reserve(self._engine, bucket, None, length)
        async with self._access.reader(origin, row, first, length, source.customer_key) as reader:
            await reader.start()
            if key_md5(customer_key) != row.customer_key_md5:
                writer = Writer(self._engine, bucket, length, [algorithm], customer_key, reservation)
                async with writer:
                    await pass_on(reader, writer)
                    return await writer.commit_part(key, upload_id, number, request=request)
            try:
                digests = await self._digests(reader, algorithm)
                spans = contents.spans(self._engine.database.reading, row.content or 0, first, length)

                def work(tx: Transaction) -> Part:
                    target = tx.bucket(bucket_id)
                    tx.count(target.number, request)
                    found = uploads.find(tx.connection, target, encoded, upload_id)
                    if not all(contents.share(tx, span.leaf.id) for span in spans):
                        raise _SourceChanged("The source was replaced meanwhile.")
                    content = contents.compose(
                        tx, [Piece(span.length, span.leaf.id, span.start) for span in spans]
                    )
                    checksum = versions.dump_checksum(digests.checksum(algorithm))
                    part = PartRow(number, content, length, digests.md5.hex(), tx.now_ms, checksum)
                    return uploads.put_part(tx, found, part)

                return await self._engine.database.write(work, reservation.release)
            finally:
                reservation.release()

    def _source(self, source: Source, conditions: ReadConditions) -> tuple[VersionRow, ObjectVersion]:
        bucket, row = self._access.find(source.bucket_id, source.key, source.version_id, source.customer_key)
        version = versions.show(row, bucket)
        rules.check_source(conditions, version)
        return row, version

    async def _checksum(
        self, source: Source, row: VersionRow, version: ObjectVersion, algorithm: ChecksumAlgorithm | None
    ) -> Checksum | None:
        """Return the checksum of the copy: that of the source, unless another is asked for."""
        known = version.checksum
        if algorithm is None or (
            known is not None and (known.algorithm, known.type) == (algorithm, ChecksumType.FULL_OBJECT)
        ):
            return known
        bucket = self._engine.bucket(source.bucket_id)
        async with self._access.reader(bucket, row, 0, row.size, source.customer_key) as reader:
            await reader.start()
            return (await self._digests(reader, algorithm)).checksum(algorithm)

    async def _digests(self, reader: Reader, algorithm: ChecksumAlgorithm) -> Digests:
        digests = Digests([algorithm])
        async for chunk in reader:
            await self._engine.in_thread(lambda chunk=chunk: digests.update(chunk))
        return digests

    async def _rewrite(
        self,
        source: Source,
        row: VersionRow,
        version: ObjectVersion,
        bucket: BucketRow,
        key: str,
        attributes: Attributes,
        algorithm: ChecksumAlgorithm | None,
        conditions: WriteConditions,
        customer_key: bytes | None,
        request: RequestClass | None,
    ) -> ObjectVersion:
        """Copy the bytes, to encrypt them by another key."""
        origin = self._engine.bucket(source.bucket_id)
        wanted = algorithm or (version.checksum.algorithm if version.checksum else DEFAULT)
        reservation = reserve(self._engine, bucket, rules.key_bytes(key), row.size)
        writer = Writer(self._engine, bucket, row.size, [wanted], customer_key, reservation)
        async with writer, self._access.reader(origin, row, 0, row.size, source.customer_key) as reader:
            await reader.start()
            await pass_on(reader, writer)
            return await writer.commit(
                key, attributes, expected=Expected(stored=wanted), conditions=conditions, request=request
            )
