"""Blobs as files: `<folder>/ab/<name>`, for which the folder belongs to this process alone.

A file is written under its own name, so that what a crash leaves is found by `list` and swept as an orphan.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

from neocloud.core.osfiles import sync_folder
from neocloud.object_store.blobs.driver import FULL, NAME, BlobError, BlobsFull, BlobStat, NoSuchBlob

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
MIN_FREE_BYTES = 64 * 1024**2
"""Blobs are refused while the disk has less, so that the metadata has room for deletes."""
FLUSH_BYTES = 8 * 1024**2
"""The kernel begins to write this much of a blob to the disk while more comes, so that the end waits less."""


class FileBlobs:
    """A `BlobDriver`. Its calls block in the threads of `executor`."""

    def __init__(self, folder: Path, executor: Executor, *, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        self._folder = folder
        self._executor = executor
        self.min_free_bytes = min_free_bytes
        folder.mkdir(exist_ok=True, mode=0o700)

    async def create(self, name: str) -> "_NewFile":
        path = self._path(name)
        return _NewFile(self, path, await self.run(_create, path))

    async def read(self, name: str, start: int, length: int) -> bytes:
        return await self.run(_read, self._path(name), start, length)

    async def delete(self, name: str) -> None:
        with suppress(NoSuchBlob):
            await self.run(self._path(name).unlink)

    async def list(self) -> AsyncIterator[BlobStat]:
        for folder in await self.run(os.listdir, self._folder):
            for found in await self.run(_list, self._folder / folder):
                yield found

    async def stat(self, name: str) -> BlobStat | None:
        try:
            return _stat(name, await self.run(self._path(name).stat))
        except NoSuchBlob:
            return None

    async def close(self) -> None:
        pass  # no file stays open

    async def run(self, call: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """Call in a thread; an OSError becomes a BlobError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: call(*args, **kwargs)
            )
        except FileNotFoundError as error:
            raise NoSuchBlob("The blob does not exist.") from error
        except OSError as error:
            if error.errno in FULL:
                raise BlobsFull("The disk of the object store is full.") from error
            raise BlobError(f"The disk of the object store fails: {error.strerror}.") from error

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), "only names of ours become paths"
        return self._folder / name[:2] / name


class _NewFile:
    def __init__(self, blobs: FileBlobs, path: Path, descriptor: int) -> None:
        self._blobs = blobs
        self._path = path
        self._descriptor: int | None = descriptor
        self._written = self._flushing = 0
        """Bytes, and how many of them the kernel was asked to begin to write to the disk."""
        self._is_finished = False

    async def write(self, chunk: bytes | memoryview) -> None:
        assert self._descriptor is not None
        await self._blobs.run(_write, self._descriptor, chunk, self._blobs.min_free_bytes)
        self._written += len(chunk)
        if self._written - self._flushing >= FLUSH_BYTES:
            start, self._flushing = self._flushing, self._written
            await self._blobs.run(_begin_flush, self._descriptor, start, self._written - start)

    async def finish(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        await self._blobs.run(os.fdatasync, descriptor)
        self._close()
        await self._blobs.run(sync_folder, self._path.parent)
        self._is_finished = True

    async def abort(self) -> None:
        self._close()
        if not self._is_finished:
            with suppress(NoSuchBlob):
                await self._blobs.run(self._path.unlink)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        sync_folder(path.parent.parent)
        return os.open(path, flags, 0o600)


def _begin_flush(descriptor: int, start: int, length: int) -> None:
    """Have the kernel begin to write this to the disk; it drops only what is there already. A hint:
    `fdatasync` waits for what is left, and returns its errors."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def _write(descriptor: int, chunk: bytes | memoryview, min_free_bytes: int) -> None:
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < min_free_bytes + len(chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def _read(path: Path, start: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks: list[bytes] = []
        while length and (chunk := os.pread(descriptor, length, start)):
            chunks.append(chunk)
            start, length = start + len(chunk), length - len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    finally:
        os.close(descriptor)


def _list(folder: Path) -> list[BlobStat]:
    found: list[BlobStat] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    found.append(_stat(entry.name, entry.stat(follow_symlinks=False)))
    return found


def _stat(name: str, found: os.stat_result) -> BlobStat:
    return BlobStat(name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
