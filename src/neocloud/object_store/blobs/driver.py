"""The interface of drivers that keep blobs. `neocloud.testing.blob_conformance` holds the tests that each
driver passes.

A blob is written once, under a new random name, and never changed. Its bytes are sealed already.
"""

import errno
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

NAME = re.compile(r"[0-9a-f]{32}")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room."""


@dataclass(frozen=True)
class BlobStat:
    name: str
    size: int
    written_at: datetime


class BlobError(Exception):
    """The driver cannot do it now. The message says why; it names no tenant."""


class BlobsFull(BlobError):
    """There is no room."""


class BlobsAway(BlobError):
    """Raised when the driver does not answer, or answers wrongly. It may answer later."""


class NoSuchBlob(BlobError):
    pass


class NewBlob(Protocol):
    """A blob that is being written. It does not exist before `finish` returns."""

    async def write(self, chunk: bytes | memoryview) -> None:
        """Return when the caller may use the memory of the chunk for something else. Raises BlobError."""
        ...

    async def finish(self) -> None:
        """Return when the blob and its name survive a power failure. Raises BlobError."""
        ...

    async def abort(self) -> None:
        """Leave nothing, also after an error. Does nothing after `finish` has returned."""
        ...


class BlobDriver(Protocol):
    async def create(self, name: str) -> NewBlob:
        """Raises BlobError."""
        ...

    async def read(self, name: str, start: int, length: int) -> bytes:
        """Return these bytes, fewer where the blob ends. Raises NoSuchBlob, BlobError."""
        ...

    async def delete(self, name: str) -> None:
        """Deleting what does not exist succeeds. Raises BlobError."""
        ...

    def list(self) -> AsyncIterator[BlobStat]:
        """Return finished blobs and what writes left unfinished, in any order. Raises BlobError."""
        ...

    async def stat(self, name: str) -> BlobStat | None:
        """Raises BlobError."""
        ...

    async def close(self) -> None: ...
