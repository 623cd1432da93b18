# pyright: strict
"""Temporary folders with the state of a cloud in plain, and errors of the disk in words."""

import errno
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote

from neocloud.control_plane.backup.archive import BackupError
from neocloud.core.untrusted_files import remove_tree

PREFIX = ".neocloud-backup-"
Show = Callable[[str], None]
"""Shows what is being done."""


@contextmanager
def private_folder(parent: Path, what: str) -> Generator[Path, None, None]:
    """A new folder for its owner alone, removed in the end. Those of killed commands are removed first."""
    with errors_of(parent, what):
        _remove_left(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
        remove_tree(folder)


def _remove_left(parent: Path) -> None:
    """Remove folders of ours that no process has locked."""
    for left in parent.glob(f"{PREFIX}*"):
        try:
            folder = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another command has removed it, or it is none of ours
            continue
        try:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(left)
        except BlockingIOError:
            continue
        finally:
            os.close(folder)


@contextmanager
def errors_of(folder: Path, what: str) -> Generator[None, None, None]:
    """Turn errors of the disk into words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackupError(
                f"No space is left for {what} in {folder}. Nothing was changed", "Free some space there"
            ) from None
        raise BackupError(
            f"{error.filename or folder} cannot be used for {what}: {error.strerror or error}. Nothing was"
            " changed",
            "Check the folder, and who owns it",
        ) from None


class Stream(Protocol):
    error: OSError | None


@contextmanager
def first_error_of(*streams: Stream) -> Generator[None, None, None]:
    """Raise what went wrong in one of the streams: what encrypts passes on its text alone."""
    try:
        yield
    except (OSError, BackupError) as error:
        raise next((each.error for each in streams if each.error), error) from None


class Sink:
    """A file for `first_error_of`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes, /) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def opened(path: Path, mode: str) -> sqlite3.Connection:
    fixed = "&immutable=1" if mode == "ro" else ""
    return sqlite3.connect(f"file:{quote(str(path))}?mode={mode}{fixed}", uri=True, isolation_level=None)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
