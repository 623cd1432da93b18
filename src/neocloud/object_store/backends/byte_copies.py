"""Copies between any two buckets: the bytes are read from one and written to the other. Used where a file is
the source or the copy; between blobs, copies are by reference (blobs/copies.py)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from neocloud.core.cleanup import aundo_on_error
from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.blobs.uploads import Uploads
from neocloud.object_store.backends.protocol import BucketBackend
from neocloud.object_store.bodies.protocols import BodyReader, pass_on
from neocloud.object_store.checksums import DEFAULT
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    ALWAYS,
    READ_ALWAYS,
    Attributes,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    Expected,
    ObjectVersion,
    Part,
    ReadConditions,
    RequestClass,
    Source,
    WriteConditions,
)


class ByteCopies:
    """A `Copies`."""

    def __init__(self, backend: Callable[[str], BucketBackend], uploads: Uploads) -> None:
        """`backend` returns that of a bucket."""
        self._backend = backend
        self._uploads = uploads

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
        async with await self._open_source(source, None, source_conditions) as reader:
            found = reader.version
            kept = found.attributes
            wanted = attributes or Attributes(kept.headers, kept.metadata, storage_class=storage_class)
            target = self._backend(bucket_id)
            if tags is None:
                tags = kept.tags if target.keeps_tags else {}
            wanted = replace(wanted, tags=tags)
            stored = algorithm or _full_algorithm(found.checksum)
            async with await target.open_write(
                bucket_id, found.size, key=key, algorithms=[stored], customer_key=customer_key
            ) as writer:
                await pass_on(reader, writer)
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
        upload = await self._uploads.upload(bucket_id, key, upload_id)
        stored = upload.checksum_algorithm or DEFAULT
        async with await self._open_source(source, range, source_conditions) as reader:
            rules.check_source_range(range, reader.version.size)
            async with await self._backend(bucket_id).open_write(
                bucket_id, reader.length, algorithms=[stored], customer_key=customer_key
            ) as writer:
                await pass_on(reader, writer)
                return await writer.commit_part(key, upload_id, number, request=request)

    async def _open_source(
        self, source: Source, range: ByteRange | None, conditions: ReadConditions
    ) -> BodyReader:
        reader = await self._backend(source.bucket_id).open_read(
            source.bucket_id, source.key, source.version_id, range=range, customer_key=source.customer_key
        )
        async with aundo_on_error(reader.close):
            rules.check_source(conditions, reader.version)
        return reader


def _full_algorithm(checksum: Checksum | None) -> ChecksumAlgorithm:
    """Return the algorithm of the copy's checksum: that of its source, where it has one."""
    return DEFAULT if checksum is None else checksum.algorithm
