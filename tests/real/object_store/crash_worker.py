"""Run the same operations again and again, in processes that die at each of their write steps in turn.

    python -m tests.real.object_store.crash_worker FOLDER VERSIONING STRIDE [ADDRESS]

`ADDRESS` is a file with the address of a database of PostgreSQL, beside which each run gets one of its own.

Each run has a folder with a store and `answers`: a line for each operation before it begins and after it was
answered. At its death a process forgets what it had not flushed: file contents and names of blobs.
"""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from neocloud.core.osfiles import create_file
from neocloud.object_store.blobs import files
from neocloud.object_store.garbage import collect
from neocloud.object_store.metadata import uploads
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Attributes, Bucket, CompletedPart, Source, Versioning
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store import stores
from tests.fast.object_store.stores import KIB, make_bucket, opened, put, put_part

MOST_STEPS = 2000
DATABASE = "database"
"""The file in a folder with the address of its database."""
KINDS = ("INSERT INTO version", "INSERT INTO garbage", "DELETE FROM garbage", "DELETE FROM upload")
_lock = threading.RLock()


def _one_at_a_time(call: Callable[..., Any]) -> Callable[..., Any]:
    def locked(*args: Any) -> Any:
        with _lock:
            return call(*args)

    return locked


class Disk:
    """Counts write steps and kills this process before one of them."""

    def __init__(self, last_step: int | None, log: Path) -> None:
        self.steps = 0
        self._last = last_step
        self._log = log
        self._kinds = {
            "INSERT INTO version",
            "INSERT INTO garbage",
            "DELETE FROM garbage",
            "DELETE FROM upload",
        }
        self._unflushed: set[str] = set()
        """Files whose content may be lost."""
        self._unnamed: set[str] = set()
        """Files whose names may be lost."""

    @_one_at_a_time
    def statement(self, text: str) -> None:
        """Count commits, and the first of some statements: whatever comes before a commit is undone."""
        kind = text.split("(")[0].split("WHERE")[0].strip()
        if kind == "COMMIT" or kind in self._kinds:
            self._kinds.discard(kind)
            self.step(kind)

    @_one_at_a_time
    def step(self, name: str) -> None:
        self.steps += 1
        if self.steps == self._last:
            with self._log.open("a") as log:
                log.write(json.dumps({"died": name}) + "\n")
            for path in self._unflushed:
                with suppress(FileNotFoundError):
                    os.truncate(path, 0)
            for path in self._unnamed:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            os.kill(os.getpid(), signal.SIGKILL)

    @_one_at_a_time
    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if not flags & os.O_CREAT:
            return _open(path, flags, mode)
        self.step("open")
        self._unnamed.add(str(path))
        return _open(path, flags, mode)

    @_one_at_a_time
    def write(self, descriptor: int, chunk: bytes) -> int:
        self.step("write")
        self._unflushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        return _write(descriptor, chunk)

    @_one_at_a_time
    def fdatasync(self, descriptor: int) -> None:
        self.step("fdatasync")
        _fdatasync(descriptor)
        self._unflushed.discard(os.readlink(f"/proc/self/fd/{descriptor}"))

    @_one_at_a_time
    def sync_folder(self, path: Path) -> None:
        self.step("sync_folder")
        self._unnamed = {each for each in self._unnamed if Path(each).parent != path}

    @_one_at_a_time
    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        self.step("unlink")
        self._unnamed.discard(str(path))
        self._unflushed.discard(str(path))
        _unlink(path, missing_ok)


_open, _write, _fdatasync, _unlink = os.open, os.write, os.fdatasync, Path.unlink


class Story:
    """The operations of the processes. Each operation is noted before it begins and after it was answered."""

    def __init__(self, store: ObjectStore, bucket: Bucket, disk: Disk, log: Path) -> None:
        self.store, self.bucket, self.disk, self.log = store, bucket, disk, log

    async def do(self, operation: dict[str, Any], work: Callable[[], Awaitable[Any]]) -> Any:
        self._note({"begun": operation})
        result = await work()
        self.disk.step("answer")
        answer = {**operation, "version": getattr(result, "version_id", "")}
        self._note({"answered": answer})
        return result

    def _note(self, line: dict[str, Any]) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps(line) + "\n")

    async def put(self, key: str, seed: int, size: int) -> Any:
        operation = {"put": key, "seed": seed, "size": size}
        return await self.do(operation, lambda: put(self.store, self.bucket, key, bytes([seed]) * size))

    async def delete(self, key: str, version_id: str | None = None) -> Any:
        operation = {"delete": key, "of": version_id}
        return await self.do(operation, lambda: self.store.delete(self.bucket.id, key, version_id))

    async def multipart(self, key: str) -> None:
        bucket = self.bucket
        upload = await self.store.create_upload(bucket.id, key, Attributes())
        named: list[CompletedPart] = []
        for number, seed in ((1, 7), (2, 8), (3, 9)):
            body = bytes([seed]) * 20 * KIB
            part = await put_part(self.store, bucket, key, upload.upload_id, number, body)
            named.append(CompletedPart(number, part.etag))
        operation = {"put": key, "seed": [7, 8], "size": 40 * KIB}
        complete = self.store.complete_upload
        await self.do(operation, lambda: complete(bucket.id, key, upload.upload_id, named[:2]))
        other = await self.store.create_upload(bucket.id, key, Attributes())
        await put_part(self.store, bucket, key, other.upload_id, 1, b"x" * 30 * KIB)
        await self.store.abort_upload(bucket.id, key, other.upload_id)

    async def run(self) -> None:
        await self.put("small", 1, 100)
        first = await self.put("large", 2, 100 * KIB)
        await self.put("small", 3, 200)
        await self.put("large", 4, 50 * KIB)
        operation = {"put": "copy", "seed": 4, "size": 50 * KIB}
        source = Source(self.bucket.id, "large")
        await self.do(operation, lambda: self.store.copy(source, self.bucket.id, "copy"))
        await self.multipart("parts")
        await self.delete("large", first.version_id if first.is_versioned else None)
        await collect(self.store.engine)
        await self.delete("small")
        await self.put("small", 5, 300)
        await self.delete("copy")
        await collect(self.store.engine)
        await asyncio.gather(*(self.put(f"many{number}", number, 17 * KIB) for number in range(3)))


async def tell(folder: Path, disk: Disk, versioning: Versioning) -> None:
    async with opened(folder, FakeClock()) as store:
        store.engine.database.on_garbage = lambda: None  # the story says when, so that steps are the same
        bucket = await make_bucket(store, versioning=versioning)
        with traced(store, disk):
            await Story(store, bucket, disk, folder / "answers").run()


@contextmanager
def traced(store: ObjectStore, disk: Disk) -> Iterator[None]:
    """Tell the disk of each statement of the writer before it is run."""
    connection: Any = store.engine.database._writing  # pyright: ignore[reportPrivateUsage]
    if stores.metadata is None:
        connection.set_trace_callback(disk.statement)
        yield
        connection.set_trace_callback(None)
        return

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def traced_call(sql: str, *parameters: Any) -> Any:
            disk.statement(sql)
            return call(sql, *parameters)

        return traced_call

    with (
        mock.patch.object(connection, "execute", before(connection.execute)),
        mock.patch.object(connection, "executemany", before(connection.executemany)),
    ):
        yield


def run(folder: Path, last_step: int | None, versioning: Versioning) -> int:
    """Tell the story, or die in it; return the number of steps."""
    folder.mkdir()
    if stores.metadata is not None:
        stores.metadata = own_database(folder)
    disk = Disk(last_step, folder / "answers")
    patches = (
        mock.patch.object(files.os, "open", disk.open),
        mock.patch.object(files.os, "write", disk.write),
        mock.patch.object(files.os, "fdatasync", disk.fdatasync),
        mock.patch.object(files, "sync_folder", disk.sync_folder),
        mock.patch.object(files.Path, "unlink", lambda path, missing_ok=False: disk.unlink(path, missing_ok)),
        mock.patch.object(uploads, "MIN_PART_BYTES", 0),
    )
    for patch in patches:
        patch.start()
    asyncio.run(tell(folder, disk, versioning))
    for patch in patches:
        patch.stop()
    return disk.steps


def own_database(folder: Path) -> Path:
    """Create a database for a folder; return the file with its address."""
    assert stores.metadata is not None
    address = stores.metadata.read_text()
    name = f"crash{folder.name}x{os.getpid()}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    create_file(folder / DATABASE, re.sub(r"/\w+\?", f"/{name}?", address))
    return folder / DATABASE


def main(base: Path, versioning: Versioning, stride: int) -> None:
    """Fork a process for every step, or for one in `stride`, until one reaches the end of the story."""
    for last_step in range(1, MOST_STEPS, stride):
        child = os.fork()
        if child == 0:
            os._exit(run(base / str(last_step), last_step, versioning) and 0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(os.WEXITSTATUS(status))
    sys.exit("the story has more steps than expected")


if __name__ == "__main__":
    stores.metadata = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    main(Path(sys.argv[1]), Versioning(sys.argv[2]), int(sys.argv[3]))
