# pyright: strict
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
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.osfiles import HeldLock, sync_folder
from neocloud.core.sqlite_file import SqliteFileError, lock_file
from neocloud.object_store import garbage
from neocloud.object_store.blob_location import driver_for
from neocloud.object_store.blobs.driver import BlobDriver, BlobError
from neocloud.object_store.blobs.s3.location import S3Place
from neocloud.object_store.blobs.sealing import KeySealer, NotAuthentic
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyReader as ObjectReader
from neocloud.object_store.bodies.protocols import BodyWriter
from neocloud.object_store.bodies.quota_reservations import Room
from neocloud.object_store.errors import StoreFull, StoreUnavailable
from neocloud.object_store.filesystems.operations import FilesystemOperations
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.location import open_metadata
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.operations.blob_uploads import BlobUploadOperations
from neocloud.object_store.operations.images import ImageOperations

__all__ = ["BodyWriter", "ObjectReader", "ObjectStore", "open_store"]

logger = logging.getLogger(__name__)
_FLUSH_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
"""Between attempts to delete blobs while that fails."""
_MAX_THREADS = 8
KEY_CHECK = "key-check"


class ObjectStore(
    FilesystemOperations,
    ImageOperations,
    BlobUploadOperations,
):
    """Opened by `open_store`. Its methods are in `operations`, by topic; those on objects that are files of a
    shared filesystem are in `filesystems`."""

    def __init__(self, engine: Engine, clock: Clock, lock: HeldLock) -> None:
        super().__init__(engine)
        self.clock = clock
        self._lock = lock
        self._wake = asyncio.Event()
        engine.database.on_garbage = self._wake.set
        self._counted = asyncio.Event()
        engine.database.on_count = self._counted.set
        self._wake.set()  # for what the last process left
        self._tasks = [asyncio.ensure_future(self._flush()), asyncio.ensure_future(self._collect())]

    @property
    def engine(self) -> Engine:
        """What the workers of this package work on."""
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
        await asyncio.to_thread(self.file_threads.shutdown)
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

    async def _collect(self) -> None:
        wait = _FLUSH_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                is_some_left = await garbage.collect(self._engine)
                wait = _FLUSH_SECONDS
            except Exception as error:
                is_known = isinstance(error, BlobError | StoreFull | StoreUnavailable)
                what = "Blobs that nobody uses could not be deleted: %s"
                logger.warning(what, error, exc_info=not is_known)
                is_some_left, wait = True, min(2 * wait, _LONGEST_WAIT_SECONDS)
            if is_some_left:
                await self.clock.sleep(wait)
                self._wake.set()


async def open_store(
    home: Path,
    key: bytes,
    clock: Clock,
    *,
    blobs: BlobDriver | None = None,
    place: S3Place | None = None,
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
    try:
        await _check_key(database, sealer)
        driver = blobs or await driver_for(database, home, executor, place)
    except BaseException as error:
        await database.close()
        lock.release()
        executor.shutdown(wait=False)
        if isinstance(error, OSError):
            raise _unusable(home, error) from error
        raise
    return ObjectStore(Engine(database, driver, sealer, executor, Room(database.total_bytes)), clock, lock)


def _open(home: Path, clock: Clock, address_file: Path | None, is_alone: bool) -> tuple[Database, HeldLock]:
    path = home / "meta.db"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(home.parent)
        lock = lock_file(path)
    except (OSError, SqliteFileError) as error:
        raise _unusable(home, error) from error
    try:
        database = Database(open_metadata(home, address_file, is_alone=is_alone), clock)
        sync_folder(home)
    except OSError as error:
        lock.release()
        raise _unusable(home, error) from error
    except BaseException:
        lock.release()
        raise
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
