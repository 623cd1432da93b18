"""Blobs of a registry on their way in: begun, received in chunks of any size, and finished under a digest.

An upload is a multipart upload whose key is the repository, so it can be found from that repository alone,
and what has been received counts for the quota and the bill. It survives a restart.
"""

from datetime import datetime
from typing import Any

from cachetools import LRUCache

from neocloud.core import digests
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.bodies.writer import Writer, open_body
from neocloud.object_store.errors import ContentHashMismatch, NoSuchUpload, TooLarge
from neocloud.object_store.image_types import BlobUpload
from neocloud.object_store.metadata import contents, repositories, uploads
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, to_ms, to_time
from neocloud.object_store.metadata.uploads import PartRow, UploadRow
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    MAX_PART_NUMBER,
    NULL_VERSION,
    Attributes,
    ObjectVersion,
    RequestClass,
)

_MOST_HASHES = 10_000
_ABORTED_AT_ONCE = 100


class Received:
    """The hash of what uploads have received, so that finishing one reads nothing again."""

    def __init__(self) -> None:
        self._known: LRUCache[str, tuple[int, Any]] = LRUCache(_MOST_HASHES)
        self.underway: set[str] = set()
        """Uploads that a request is adding to."""

    def begin(self, upload_id: str, algorithm: str) -> None:
        """Note the algorithm by which a client will name an upload."""
        if algorithm != digests.DEFAULT:
            self.set(upload_id, 0, digests.running(algorithm))

    def get(self, upload_id: str, size: int, algorithm: str = "") -> Any:
        """Return a copy of the hash of the first `size` bytes, by an algorithm ("": whichever is known); None
        where it is not known."""
        known = self._known.get(upload_id)
        if known is not None and known[0] == size and algorithm in ("", known[1].name):
            return known[1].copy()
        return digests.running(algorithm or digests.DEFAULT) if size == 0 else None

    def set(self, upload_id: str, size: int, running: Any) -> None:
        self._known[upload_id] = (size, running)

    def forget(self, upload_id: str) -> None:
        self._known.pop(upload_id, None)


class ImageBlobUploads:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.received = Received()

    async def begin_blob(self, bucket_id: str, repository: str) -> str:
        """Return the id of a new upload."""

        def work(tx: Transaction) -> str:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.MODIFY)
            repositories.ensure(tx, bucket.number, repository)
            made = uploads.create(tx, bucket, repository.encode(), Attributes(), None, None, "")
            return made.upload_id

        return await self._engine.database.write(work)

    def blob_upload(self, bucket_id: str, repository: str, upload_id: str) -> BlobUpload:
        """Raises NoSuchUpload, also for one of another repository."""
        _, upload, parts = self._upload(bucket_id, repository, upload_id)
        return BlobUpload(upload.id, sum(part.size for part in parts), len(parts))

    async def open_chunk(self, bucket_id: str, length: int | None) -> Writer:
        """Begin a chunk; None: of unknown length. End it with `commit_part`, whose key is the repository and
        whose number is one more than there are chunks. Raises QuotaExceeded, TooLarge."""
        return await open_body(self._engine, bucket_id, length)

    async def finish_blob(self, bucket_id: str, repository: str, upload_id: str, digest: str) -> int:
        """Make what was received a blob of the repository; return its size. Raises NoSuchUpload,
        ContentHashMismatch (the upload continues), TooLarge."""
        bucket, upload, parts = self._upload(bucket_id, repository, upload_id)
        if len(parts) > MAX_PART_NUMBER:
            raise TooLarge(f"A blob is received in {MAX_PART_NUMBER:,} chunks at most.")
        size = sum(part.size for part in parts)
        algorithm = digests.algorithm_of(digest)
        running = self.received.get(upload_id, size, algorithm)
        if running is None:
            running = await self._hash(bucket, upload, parts, algorithm)
        if digests.written(running) != digest:
            raise ContentHashMismatch("What was received has another digest.")
        seen = [part.content for part in parts]

        def work(tx: Transaction) -> None:
            target = tx.bucket(bucket_id)
            tx.count(target.number, RequestClass.MODIFY)
            found = uploads.find(tx.connection, target, repository.encode(), upload_id)
            now = uploads.parts(tx.connection, found, 0, MAX_PART_NUMBER + 1)
            if [part.content for part in now] != seen:
                raise NoSuchUpload("The upload was changed by another request meanwhile. Begin another one.")
            repositories.finish_upload(tx, target, found, digest)
            number = repositories.ensure(tx, target.number, repository)
            repositories.link(tx, target.number, number, digest)

        await self._engine.database.write(work)
        self.received.forget(upload_id)
        return size

    async def abort_blob(self, bucket_id: str, repository: str, upload_id: str) -> None:
        """Raises NoSuchUpload."""

        def work(tx: Transaction) -> None:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.DELETE)
            uploads.abort(tx, uploads.find(tx.connection, bucket, repository.encode(), upload_id))

        await self._engine.database.write(work)
        self.received.forget(upload_id)

    async def abort_stale_blobs(self, before: datetime) -> int:
        """Abort uploads that began before a time, in registries of any state; return how many."""
        before_ms = to_ms(before)

        def work(tx: Transaction) -> int:
            where = "created_ms < ? AND bucket IN (SELECT bucket FROM repository) LIMIT ?"
            found = list(uploads.select(tx.connection, where, before_ms, _ABORTED_AT_ONCE))
            for row in found:
                uploads.abort(tx, UploadRow._make(row))
            return len(found)

        total = 0
        while aborted := await self._engine.database.write(work):
            total += aborted
        return total

    def _upload(
        self, bucket_id: str, repository: str, upload_id: str
    ) -> tuple[BucketRow, UploadRow, list[PartRow]]:
        bucket, reading = self._engine.bucket(bucket_id), self._engine.database.reading
        upload = uploads.find(reading, bucket, repository.encode(), upload_id)
        return bucket, upload, uploads.parts(reading, upload, 0, MAX_PART_NUMBER + 1)

    async def _hash(self, bucket: BucketRow, upload: UploadRow, parts: list[PartRow], algorithm: str) -> Any:
        """Return the hash of an upload that began before the last restart, or was hashed by another
        algorithm."""
        running = digests.running(algorithm)
        for part in parts:
            spans = contents.spans(self._engine.database.reading, part.content, 0, part.size)
            version = _as_version(upload, part)
            async with Reader(self._engine, version, 0, part.size, spans, self._engine.sealer) as reader:
                await reader.start()
                async for chunk in reader:
                    await self._engine.in_thread(lambda data=chunk: running.update(data))
        return running


def _as_version(upload: UploadRow, part: PartRow) -> ObjectVersion:
    """Return what a reader says it reads."""
    return ObjectVersion(
        key=upload.key.decode(),
        version_id=NULL_VERSION,
        is_latest=True,
        is_delete_marker=False,
        size=part.size,
        etag=part.etag,
        modified_at=to_time(part.modified_ms),
        storage_class=StorageClass(upload.storage_class),
        attributes=Attributes(),
        checksum=None,
        part_count=0,
        is_versioned=False,
    )
