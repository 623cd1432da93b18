"""A piece of a blob until the engine has it: in memory while it is short, then in a file without a name."""

import asyncio
import base64
import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from neocloud.object_store.blobs.driver import FULL, BlobError, BlobsFull
from neocloud.object_store.blobs.files import MIN_FREE_BYTES

MEMORY_BYTES = 256 * 1024
_CHUNK_BYTES = 1024**2
_Result = TypeVar("_Result")


class Spool:
    """Its calls block in the threads of `executor`, one at a time."""

    def __init__(self, folder: Path, executor: Executor) -> None:
        self._folder, self._executor = folder, executor
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(folder))  # noqa: SIM115 (`close` closes)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    @property
    def content_md5(self) -> str:
        """Return the MD5 as the header Content-MD5 has it."""
        return base64.b64encode(self.md5).decode()

    async def add(self, chunk: memoryview) -> None:
        """Raises BlobError."""
        await self._run(lambda: self._add(chunk))

    def _add(self, chunk: memoryview) -> None:
        self.size += len(chunk)
        if self.size > MEMORY_BYTES:
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES + self.size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file.write(chunk)
        self._md5.update(chunk)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield all that was added. Raises BlobError."""
        await self._run(lambda: self._file.seek(0))
        while chunk := await self._run(lambda: self._file.read(_CHUNK_BYTES)):
            yield chunk

    def close(self) -> None:
        self._file.close()

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except OSError as error:
            if error.errno in FULL:
                raise BlobsFull("The disk of the object store is full.") from error
            raise BlobError(f"The disk of the object store fails: {error.strerror}.") from error
