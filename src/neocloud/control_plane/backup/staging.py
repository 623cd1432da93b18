"""Temporary files with the state of a cloud, how they get their places, and errors of the disk in words."""

import errno
import fcntl
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from neocloud.control_plane.backup.archive import BackupError, Watched, kept_error
from neocloud.core.cleanup import undo_on_error
from neocloud.core.osfiles import sync_folder
from neocloud.core.untrusted.files import remove_tree

PREFIX = ".neocloud-backup-"
Show = Callable[[str], None]
"""Shows what is being done."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def private_folder(parent: Path, what: str) -> Generator[Path, None, None]:
    """A new folder for its owner alone, removed in the end. Those of killed commands are removed first."""
    with errors_of(parent, what):
        _remove_left(parent)
        folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        try:
            remove_tree(folder)
        finally:
            os.close(lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, folder):
                return folder, lock
            os.close(lock)  # another command was faster, and removed it


def _remove_left(parent: Path) -> None:
    """Remove folders of ours that no process has locked."""
    for left in parent.glob(f"{PREFIX}*"):
        _remove_unlocked(left, os.O_DIRECTORY, remove_tree)


@contextmanager
def draft_of(target: Path) -> Generator[tuple[Path, BinaryIO], None, None]:
    """A new file beside the target, removed in the end unless it was moved. Those of killed commands are
    removed first."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    for left in target.parent.glob(".*.partial"):
        if name.fullmatch(left.name):
            _remove_unlocked(left, os.O_NONBLOCK, Path.unlink)
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}.partial")
    try:
        with os.fdopen(os.open(draft, _CREATE, 0o600), "wb") as file:
            with suppress(OSError):  # not every file system has locks, or modes
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(OSError):
                os.fchmod(file.fileno(), 0o600)
            yield draft, file
    finally:
        draft.unlink(missing_ok=True)


def _remove_unlocked(left: Path, flag: int, remove: Callable[[Path], None]) -> None:
    """Remove what a killed command has left; not what is used, or belongs to somebody else."""
    try:
        descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flag)
    except OSError:  # another command has removed it, or it is none of ours
        return
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is used, or cannot be locked
            return
        if _is_at(descriptor, left):
            remove(left)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def put_in_place(draft: Path, target: Path) -> None:
    """Move a file or folder to a name that nothing has. Raises FileExistsError; OSError."""
    if draft.is_dir():
        target.mkdir(mode=0o700)
    else:
        try:
            os.link(draft, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: vfat, some shares
            os.close(os.open(target, _CREATE, 0o600))
        else:
            draft.unlink()
            return

    def remove() -> None:
        with suppress(OSError):
            target.rmdir() if target.is_dir() else target.unlink()

    with undo_on_error(remove):
        os.rename(draft, target)


def was_put(draft: Path, target: Path) -> bool:
    """Return whether `put_in_place` put it there, also when it was interrupted."""
    try:
        return os.path.samestat(draft.lstat(), target.lstat())
    except FileNotFoundError:
        return not os.path.lexists(draft)


def confirm(folder: Path, done: str) -> None:
    """Return once the names in the folder are on the disk. Raises BackupError, which says what was done."""
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            raise BackupError(
                f"{done}, but the disk of {folder} does not confirm it: {error.strerror}", "Check the disk"
            ) from None


@contextmanager
def errors_of(folder: Path, what: str) -> Generator[None, None, None]:
    """Turn errors of the disk into words."""
    try:
        yield
    except sqlite3.Error as error:
        raise BackupError(
            f"A database in {folder} cannot be used for {what}: {error}. Nothing was changed",
            "Check the folder and its disk",
        ) from None
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


@contextmanager
def first_error_of(*streams: Watched) -> Generator[None, None, None]:
    """Raise the exception of one of the streams.

    The library that encrypts passes on its text alone, and ignores one of its last write.
    """
    found: BaseException | None = None
    try:
        yield
    except (OSError, BackupError) as error:
        found = error
    found = next((each.error for each in streams if each.error), found)
    if found is not None:
        raise found from None


class Stream:
    """A file for `first_error_of`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def read(self, size: int = -1, /) -> bytes:
        with kept_error(self):
            return self._file.read(size)

    def write(self, data: bytes, /) -> int:
        with kept_error(self):
            return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def opened(copy: Path) -> sqlite3.Connection:
    """Open a copy of a database, which nobody changes."""
    return sqlite3.connect(f"file:{quote(str(copy))}?mode=ro&immutable=1", uri=True, isolation_level=None)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
