"""The object store as the S3 front, the workers and the tests see it.

    store = await open_store(home / "objects", key, SystemClock())
    bucket = store.bucket("my-bucket")
    async with await store.open_write(bucket.id, length=5, key="a/key") as writer:
        await writer.write(b"hello")
        version = await writer.commit("a/key", Attributes())
    async with await store.open_read(bucket.id, "a/key") as reader:
        async for chunk in reader: ...

Everything that was answered is on the disk. All methods are called from the thread of the event loop.
Beside the errors that a method names, each may raise StoreUnavailable, each that writes StoreFull, and each
that takes a bucket id NoSuchBucket, also while the bucket is scheduled for deletion unless it says otherwise.
Methods that write take `request`: how the request is counted, in the same transaction; None: not at all.
"""

import asyncio
import hmac
import os
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from neocloud.core.cleanup import aundo_on_error, undo_on_error
from neocloud.core.clock import Clock
from neocloud.core.osfiles import HeldLock, sync_folder
from neocloud.core.sqlite_file import SqliteFileError, lock_file
from neocloud.object_store import garbage
from neocloud.object_store.backends.blobs import changes
from neocloud.object_store.backends.blobs.access import BlobAccess
from neocloud.object_store.backends.blobs.backend import BlobBackend
from neocloud.object_store.backends.blobs.copies import BlobCopies
from neocloud.object_store.backends.blobs.uploads import Uploads
from neocloud.object_store.backends.byte_copies import ByteCopies
from neocloud.object_store.backends.files.access import FileAccess
from neocloud.object_store.backends.files.backend import FileBackend
from neocloud.object_store.backends.protocol import BucketBackend, Copies
from neocloud.object_store.blob_location import driver_for
from neocloud.object_store.blobs.driver import BlobDriver
from neocloud.object_store.blobs.s3.location import S3Location
from neocloud.object_store.blobs.sealing import KeySealer, NotAuthentic
from neocloud.object_store.bodies.engine import Engine, QuotaReservations
from neocloud.object_store.bodies.protocols import BodyReader as ObjectReader
from neocloud.object_store.bodies.protocols import BodyWriter
from neocloud.object_store.buckets import Buckets
from neocloud.object_store.errors import ObjectStoreError, StoreFull, StoreUnavailable
from neocloud.object_store.images.blob_uploads import ImageBlobUploads
from neocloud.object_store.images.images import ContainerImages
from neocloud.object_store.last_access import AccessMethod, counts
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.location import open_metadata
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.types import (
    ALWAYS,
    Deleted,
    DeleteItem,
    ObjectVersion,
    RequestClass,
    Retention,
    Source,
    WriteConditions,
)

__all__ = ["BodyWriter", "ObjectReader", "ObjectStore", "open_store"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_FLUSH_SECONDS = 1.0
_MAX_THREADS = 8
KEY_CHECK = "key-check"


class ObjectStore:
    """Opened by `open_store`. It passes each operation on an object to the backend of its bucket; operations
    on buckets, unfinished uploads and images are the same for all buckets."""

    def __init__(self, engine: Engine, clock: Clock, lock: HeldLock) -> None:
        self._engine = engine
        self.clock = clock
        self._lock = lock
        wake = asyncio.Event()
        engine.database.on_garbage = wake.set
        self._counted = asyncio.Event()
        engine.database.on_count = self._counted.set
        wake.set()  # for what the last process left
        access, uploads, buckets = BlobAccess(engine), Uploads(engine), Buckets(engine)
        self._blobs = BlobBackend(engine, access, uploads)
        self._files = FileBackend(engine, FileAccess(engine, buckets.count), self._blobs)
        self._copies_of_blobs = BlobCopies(engine, access)
        self._copies_of_bytes = ByteCopies(self._backend, uploads)
        self._offer_buckets(buckets)
        self._offer_objects(uploads)
        self._offer_images(ContainerImages(engine, access), ImageBlobUploads(engine))
        self._tasks = [
            asyncio.ensure_future(self._flush()),
            asyncio.ensure_future(garbage.collect_when(wake, engine, clock)),
        ]

    def _offer_buckets(self, buckets: Buckets) -> None:
        self.apply_bucket = buckets.apply_bucket
        self.set_object_lock = buckets.set_object_lock
        self.set_front = buckets.set_front
        self.buckets = buckets.buckets
        self.bucket = buckets.bucket
        self.is_empty = buckets.is_empty
        self.is_protected = buckets.is_protected
        self.has_versions = buckets.has_versions
        self.abort_uploads = buckets.abort_uploads
        self.purge_bucket = buckets.purge_bucket
        self.forget_bucket = buckets.forget_bucket
        self.counters = buckets.counters
        self.count = buckets.count

    def _offer_objects(self, uploads: Uploads) -> None:
        self.open_write = self._of_bucket(BucketBackend.open_write)
        self.head = self._of_bucket(BucketBackend.head)
        self.find_version = self._of_bucket(BucketBackend.find_version)
        self.open_read = self._of_bucket(BucketBackend.open_read)
        self.part_range = self._of_bucket(BucketBackend.part_range)
        self.parts_of = self._of_bucket(BucketBackend.parts_of)
        self.delete_many = self._of_bucket(BucketBackend.delete_many)
        self.list_objects = self._of_bucket(BucketBackend.list_objects)
        self.list_versions = self._of_bucket(BucketBackend.list_versions)
        self.copy = self._between_buckets(Copies.copy, writes_object=True)
        self.copy_part = self._between_buckets(Copies.copy_part, writes_object=False)
        self.create_upload = self._of_bucket(BucketBackend.create_upload)
        self.complete_upload = self._of_bucket(BucketBackend.complete_upload)
        self.upload = uploads.upload
        self.abort_upload = uploads.abort_upload
        self.list_uploads = uploads.list_uploads
        self.list_parts = uploads.list_parts

    def _offer_images(self, images: ContainerImages, uploads: ImageBlobUploads) -> None:
        self.blob_size = images.blob_size
        self.open_blob = images.open_blob
        self.mount_blob = images.mount_blob
        self.delete_blob = images.delete_blob
        self.put_manifest = images.put_manifest
        self.manifest = images.manifest
        self.open_manifest = images.open_manifest
        self.delete_manifest = images.delete_manifest
        self.delete_tag = images.delete_tag
        self.delete_artifacts = images.delete_artifacts
        self.tags = images.tags
        self.referrers = images.referrers
        self.image_count = images.image_count
        self.apply_image_rules = images.apply_image_rules
        self.removed_images = images.removed_images
        self.collect_blobs = images.collect_blobs
        self.begin_blob = uploads.begin_blob
        self.blob_upload = uploads.blob_upload
        self.open_chunk = uploads.open_chunk
        self.finish_blob = uploads.finish_blob
        self.abort_blob = uploads.abort_blob
        self.abort_stale_blobs = uploads.abort_stale_blobs
        self.received = uploads.received

    def _backend(self, bucket_id: str) -> BucketBackend:
        """Raises NoSuchBucket."""
        bucket = self._engine.bucket(bucket_id).bucket
        return self._blobs if bucket.filesystem is None else self._files

    def _of_bucket(
        self, method: Callable[Concatenate[BucketBackend, str, _Arguments], Coroutine[object, None, _Result]]
    ) -> Callable[Concatenate[str, _Arguments], Coroutine[object, None, _Result]]:
        """Return a method of the backend of the bucket that a call names."""

        async def call(bucket_id: str, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            chosen = getattr(self._backend(bucket_id), method.__name__)
            return await chosen(bucket_id, *arguments, **options)

        return call

    def _between_buckets(
        self,
        method: Callable[Concatenate[Copies, Source, str, _Arguments], Coroutine[object, None, _Result]],
        *,
        writes_object: bool,
    ) -> Callable[Concatenate[Source, str, _Arguments], Coroutine[object, None, _Result]]:
        """Return a method of the copies between the buckets that a call names. `writes_object` False: it
        writes a part, which is a blob in all buckets."""

        async def call(
            source: Source, bucket_id: str, *arguments: _Arguments.args, **options: _Arguments.kwargs
        ) -> _Result:
            reads_blob = self._backend(source.bucket_id) is self._blobs
            writes_blob = not writes_object or self._backend(bucket_id) is self._blobs
            copies = self._copies_of_blobs if reads_blob and writes_blob else self._copies_of_bytes
            return await getattr(copies, method.__name__)(source, bucket_id, *arguments, **options)

        return call

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
        return await self._backend(bucket_id).change_version(
            bucket_id, key, version_id, changes.tags(tags), request
        )

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
        change = changes.retention(retention, bypass_governance=bypass_governance)
        return await self._backend(bucket_id).change_version(bucket_id, key, version_id, change, request)

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
        change = changes.legal_hold(is_held=is_held)
        return await self._backend(bucket_id).change_version(bucket_id, key, version_id, change, request)

    def note_access(
        self, bucket_id: str, version: ObjectVersion, method: AccessMethod, user_agent: str
    ) -> None:
        """Remember that a client read a version, where the filter of its bucket counts such reads. It is
        written with a later commit; what is pending in memory then is lost with the process."""
        bucket = self._engine.database.buckets.find(bucket_id)
        if not version.seq or bucket is None:  # a file has no number
            return
        if counts(bucket.bucket.access_filter, method, user_agent):
            self._engine.database.note_access(version.seq, version.accessed_ms)

    @property
    def engine(self) -> Engine:
        """Return the engine that the workers of this package use."""
        return self._engine

    async def close(self) -> None:
        """Finish commits in progress, and close the files."""
        if self._engine.tasks:
            await asyncio.wait(set(self._engine.tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._engine.blobs.close()
        await self._engine.database.close()
        await asyncio.to_thread(self._engine.executor.shutdown)
        await self._files.close()
        self._lock.release()

    async def flush(self) -> None:
        """Return when what was counted is on the disk."""
        await self._engine.database.flush()

    async def _flush(self) -> None:
        while True:
            await self._counted.wait()
            self._counted.clear()
            await self.clock.sleep(_FLUSH_SECONDS)
            try:
                await self.flush()
            except (StoreFull, StoreUnavailable):  # counts stay in memory until the disk is back
                self._counted.set()


async def open_store(
    home: Path,
    key: bytes,
    clock: Clock,
    *,
    blobs: BlobDriver | None = None,
    place: S3Location | None = None,
    metadata: Path | None = None,
    is_alone: bool = True,
) -> ObjectStore:
    """Open or create the store in a folder of its own.

    `key` (32 bytes) seals the data keys of the objects: without it, no object can be read. `blobs` keeps the
    bodies; None: a driver for `place`, and where that is None, too, for files in the folder. `metadata` is
    a file with the address of a database of PostgreSQL that keeps the metadata; None: a file of SQLite in the
    folder.
    `is_alone`: no other gateway may use that database. Raises StoreUnavailable where another process uses the
    folder or the database, a newer release wrote it, the key is another, or the bodies or the metadata are
    elsewhere.
    """
    database, lock = await asyncio.to_thread(_open, home, clock, metadata, is_alone)
    executor = ThreadPoolExecutor(min(_MAX_THREADS, 2 + (os.cpu_count() or 1)), thread_name_prefix="objects")
    sealer = KeySealer(key)

    async def close() -> None:
        await database.close()
        lock.release()
        executor.shutdown(wait=False)

    try:
        async with aundo_on_error(close):
            await _check_key(database, sealer)
            driver = blobs or await driver_for(database, home, executor, place)
    except OSError as error:
        raise _unusable(home, error) from error
    return ObjectStore(
        Engine(database, driver, sealer, executor, QuotaReservations(database.total_bytes)), clock, lock
    )


def _open(home: Path, clock: Clock, address_file: Path | None, is_alone: bool) -> tuple[Database, HeldLock]:
    path = home / "meta.db"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(home.parent)
        lock = lock_file(path)
    except (OSError, SqliteFileError) as error:
        raise _unusable(home, error) from error
    try:
        with undo_on_error(lock.release):
            database = Database(open_metadata(home, address_file, is_alone=is_alone), clock)
            sync_folder(home)
    except OSError as error:
        raise _unusable(home, error) from error
    return database, lock


def _unusable(home: Path, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"The object store in {home} cannot be opened: {error}")


async def _check_key(database: Database, sealer: KeySealer) -> None:
    """Remember a sealed value, and refuse a key that cannot open it."""
    expected = b"the key of this object store"
    row = database.reading.execute("SELECT value FROM fact WHERE name = ?", (KEY_CHECK,)).fetchone()
    if row is None:
        sealed = sealer.seal(expected)

        def remember(tx: Transaction) -> tuple[bytes]:
            tx.connection.execute(
                "INSERT INTO fact VALUES (?, ?) ON CONFLICT DO NOTHING", (KEY_CHECK, sealed)
            )
            return tx.connection.execute("SELECT value FROM fact WHERE name = ?", (KEY_CHECK,)).fetchone()

        row = await database.write(remember)
    try:
        is_right = hmac.compare_digest(sealer.open(row[0]), expected)
    except NotAuthentic:
        is_right = False
    if not is_right:
        raise StoreUnavailable(
            "The key does not belong to this object store: its objects could not be read. Restore the key"
            " file that was made with it."
        )
