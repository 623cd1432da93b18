"""Bytes of a file on their way out, a MiB at a time, one ahead of the caller.

The response has promised the length and the ETag of the file as it was opened. When a program changes the
file meanwhile, the rest is not sent: the client sees that the body is not whole. A file that is replaced is
read to its end.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from types import TracebackType
from typing import BinaryIO, Self

from neocloud.object_store.backends.files.files import raise_explained
from neocloud.object_store.errors import Damaged
from neocloud.object_store.types import ObjectVersion

CHUNK_BYTES = 1024**2


class FileReader:
    """A BodyReader."""

    def __init__(
        self,
        executor: Executor,
        file: BinaryIO,
        state: os.stat_result,
        version: ObjectVersion,
        first: int,
        length: int,
    ) -> None:
        """Takes over the file; `state` is that of the file when the version was made."""
        self.version = version
        self.first = first
        self.length = length
        self._executor = executor
        self._file = file
        self._state = state
        self._position = first
        self._first_chunk = b""
        self._next: asyncio.Future[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        pending, self._next = self._next, None
        if pending is not None:
            await asyncio.wait([pending])
            if not pending.cancelled():
                pending.exception()
        self._file.close()

    async def start(self) -> None:
        """Read the first chunk. Raises Damaged, StoreUnavailable."""
        if self.length:
            self._first_chunk = await self._read()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk, self._first_chunk = self._first_chunk, b""
        self._advance()
        if chunk:
            yield chunk
        while self._next is not None:
            chunk = await self._next
            self._advance()
            yield chunk

    def _advance(self) -> None:
        is_over = self._position >= self.first + self.length
        self._next = None if is_over else self._read()

    def _read(self) -> asyncio.Future[bytes]:
        start = self._position
        self._position = min(start + CHUNK_BYTES, self.first + self.length)
        length = self._position - start
        return asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: _chunk(self._file, start, length, self._state)
        )


def _chunk(file: BinaryIO, start: int, length: int, before: os.stat_result) -> bytes:
    """Raises Damaged where the file was changed."""
    try:
        found = os.pread(file.fileno(), length, start)
        while len(found) < length and (
            more := os.pread(file.fileno(), length - len(found), start + len(found))
        ):
            found += more
        after = os.fstat(file.fileno())
    except OSError as error:
        raise_explained(error)
    if len(found) < length or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise Damaged("A program changed the file while it was read. Read it again.")
    return found
