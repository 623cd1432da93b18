"""Files that others append to, followed without asking: the kernel says when something was written.

Podman itself asks four times a second, for its stream of events and for each log that it follows.
"""

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_libc = ctypes.CDLL(None, use_errno=True)
_MODIFY, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED = 0x400, 0x800, 0x8000
_MASK = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_HEADER = struct.Struct("iIII")
_NOTES_BYTES = 64 * 1024
_BLOCK_BYTES = 2**18
_TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.ENOSPC)
_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 0.2
"""Between two looks for a folder that is not there yet."""


class FolderChanges:
    """Waits for changes in one folder, as the kernel reports them. Raises OSError where it is not there.

    Where the kernel watches nothing more for this user, each wait takes a quarter of a second instead.
    """

    def __init__(self, folder: Path) -> None:
        self.is_gone = False
        """Whether the folder was removed or renamed: no more changes are reported."""
        self._descriptor: int | None = None
        try:
            self._watch(folder)
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
            logger.warning("%s is looked at four times a second: %s (fs.inotify.max_user_*)", folder, error)

    def _watch(self, folder: Path) -> None:
        self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), folder)
        try:
            _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK), folder)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    async def wait(self, end: int | None = None) -> bool:
        """Wait for a change since the last call. False: the descriptor `end` became readable before."""
        ends = () if end is None else (end,)
        if self._descriptor is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await _readable(*ends)
                    return False
            return True
        await _readable(self._descriptor, *ends)
        has_changed = False
        with suppress(BlockingIOError):
            while notes := os.read(self._descriptor, _NOTES_BYTES):
                has_changed = True
                self.is_gone |= _has_left(notes)
        return has_changed


def _has_left(notes: bytes) -> bool:
    at = 0
    while at < len(notes):
        _, mask, _, length = _HEADER.unpack_from(notes, at)
        if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
            return True
        at += _HEADER.size + length
    return False


def _checked(result: int, folder: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    return result


async def _readable(*descriptors: int) -> None:
    """Wait until one of these can be read."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not found.done():
            found.set_result(None)

    for each in descriptors:
        loop.add_reader(each, note)
    try:
        await found
    finally:
        for each in descriptors:
            loop.remove_reader(each)


async def followed_lines(
    file: Path, *, offset: int = 0, end: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield each whole line of the file from `offset` on, without its end, and each that is appended.

    A file that is put in its place is read from its beginning: what it repeats is up to the caller. Without
    `end`, a descriptor that can be read once nothing more is written, it waits for the file, and continues
    where its folder is made again.
    """
    while True:
        try:
            changes = FolderChanges(file.parent)
        except FileNotFoundError:
            if end is not None:
                return
            await asyncio.sleep(_AGAIN_SECONDS)
            continue
        try:
            async for line in _lines_in(file, changes, offset, end):
                yield line
        finally:
            changes.close()
        if end is not None:
            return
        offset = 0


async def _lines_in(
    file: Path, changes: FolderChanges, offset: int, end: int | None
) -> AsyncGenerator[bytes, None]:
    """Yield the lines until the folder is gone, or `end` can be read."""
    rest, is_over = b"", False
    while True:
        with _opened(file) as descriptor:
            while True:
                is_replaced = not _is_at(file, descriptor)  # before the last read of what was in its place
                while descriptor is not None and (block := os.pread(descriptor, _BLOCK_BYTES, offset)):
                    offset += len(block)
                    *whole, rest = (rest + block).split(b"\n")
                    for line in whole:
                        yield line
                    await asyncio.sleep(0)  # who writes faster than we read must not keep the loop
                if is_over or changes.is_gone:
                    return
                if is_replaced:
                    break
                is_over = not await changes.wait(end)
        offset, rest = 0, b""


@contextmanager
def _opened(file: Path) -> Generator[int | None]:
    """Open the file; None where it is not there."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(file: Path, descriptor: int | None) -> bool:
    """Return whether the open file is the one that has the name now; of none, whether none has.

    A file that was removed must not stay open: the kernel reports the end of its folder only after that.
    """
    try:
        named = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return descriptor is None
    return descriptor is not None and os.path.samestat(named, os.fstat(descriptor))
