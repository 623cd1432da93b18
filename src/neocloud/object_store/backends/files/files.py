"""The files of a bucket: find, put in place, delete. Blocking, to be called in a thread.

Programs on the filesystem change the same files meanwhile. A write of S3 replaces a file in one step; between
the check of its conditions and that step, only another write of S3 is excluded.
"""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NoReturn

from neocloud.core.cleanup import undo_on_error
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.core.untrusted.writes import give_name, make_owned, put_in_place, unnamed_file
from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.files import records
from neocloud.object_store.backends.files.paths import HIDDEN_PREFIX, FilePath, NoFile, file_path
from neocloud.object_store.backends.files.records import FileRecord
from neocloud.object_store.errors import (
    InvalidRequest,
    KeyTooLong,
    NoSuchKey,
    ObjectStoreError,
    QuotaExceeded,
    StoreBusy,
    StoreUnavailable,
)
from neocloud.object_store.filesystem_view import FilesystemView
from neocloud.object_store.types import ObjectVersion, WriteConditions

_ATTEMPTS = 16
"""Others may remove a folder, or make a file, between two steps of a write."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Why there is no object: also where a link is, or a file where a folder would have to be."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OCCUPIED = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EXDEV})
_BUSY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EMLINK})
_LOCKS = tuple(threading.Lock() for _ in range(64))
"""Writes of one key one after the other; keys share locks."""


class BucketFiles:
    def __init__(self, view: FilesystemView) -> None:
        self._view = view

    @contextmanager
    def root(self, *, make: bool = False) -> Generator[Folder | None, None, None]:
        """The directory of the bucket, while the context lasts; None where it is not there. Raises
        StoreUnavailable, InvalidRequest."""
        with self._filesystem() as filesystem:
            parts = [each for each in self._view.directory.split("/") if each]
            if make:
                found = self._made(filesystem, parts)
            else:
                try:
                    found = filesystem.folder("/".join(parts) or ".")
                except OSError as error:
                    if error.errno == errno.ENOENT:
                        found = None
                    else:
                        raise_explained(error, "The directory of the bucket")
            if found is None:
                yield None
                return
            with found:
                yield found

    @contextmanager
    def _filesystem(self) -> Generator[Folder, None, None]:
        try:
            found = Folder.open(Path(self._view.folder))
        except FileNotFoundError as error:
            raise StoreBusy(
                "The filesystem of the bucket is not mounted at the moment. Try again later."
            ) from error
        except OSError as error:
            raise_explained(error)
        with found:
            yield found

    def file(self, key: str) -> tuple[BinaryIO, ObjectVersion, os.stat_result]:
        """Return an object, open for reading; the caller closes it. Raises NoSuchKey."""
        with self._read(key) as (root, path):
            if path.is_folder:
                return _nothing_of(root, key, path)
            opened = root.file(path.path)
            with undo_on_error(opened.close):
                state = os.fstat(opened.fileno())
                return opened, records.version(key, opened.fileno(), state), state

    def find(self, key: str) -> ObjectVersion:
        """Raises NoSuchKey."""
        with self._read(key) as (root, path):
            found = object_at(root, key, path)
            if found is None:
                raise no_such_key()
            return found

    def upload_id(self, key: str) -> str:
        """Return which multipart upload the object was; "": none."""
        with self._read(key) as (root, path), root.pinned(path.path) as pinned:
            record = records.read(pinned)
            return record.upload_id if record is not None else ""

    @contextmanager
    def _read(self, key: str) -> Generator[tuple[Folder, FilePath], None, None]:
        try:
            path = file_path(key)
        except (NoFile, KeyTooLong):
            raise no_such_key() from None
        with self.root() as root:
            if root is None:
                raise no_such_key()
            try:
                yield root, path
            except OSError as error:
                if error.errno in _ABSENT:
                    raise no_such_key() from error
                raise_explained(error)

    def new_file(self) -> BinaryIO:
        """A file without a name, on the filesystem of the bucket."""
        with self._filesystem() as filesystem:
            try:
                return unnamed_file(filesystem)
            except OSError as error:
                raise_explained(error)

    def put(
        self, key: str, file: BinaryIO, record: FileRecord, conditions: WriteConditions, mtime_ns: int
    ) -> ObjectVersion:
        """Make a complete file the object of this key. Raises ConditionFailed, NoSuchKey (If-Match on
        nothing), InvalidRequest, QuotaExceeded."""
        path = file_path(key)
        if path.is_folder:
            return self._put_folder(key, path, file, record, conditions)
        try:
            descriptor = file.fileno()
            os.fchown(descriptor, self._view.uid, self._view.gid)
            os.fchmod(descriptor, self._view.file_mode)
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            state = os.fstat(descriptor)
            records.write(descriptor, replace(record, size=state.st_size, mtime_ns=state.st_mtime_ns))
            os.fsync(descriptor)
            with _locked(key):
                self._put_file(key, path, file, conditions)
            return records.version(key, descriptor, os.fstat(descriptor))
        except OSError as error:
            raise_explained(error)

    def _put_file(self, key: str, path: FilePath, file: BinaryIO, conditions: WriteConditions) -> None:
        with self.root() as root:  # before a folder is made for it
            rules.check_put(conditions, object_at(root, key, path) if root is not None else None)

        def prune() -> None:
            with suppress(OSError, ObjectStoreError), self.root() as root:
                if root is not None:
                    _prune(root, path.folders)

        with undo_on_error(prune):
            self._name(key, path, file, conditions)

    def _name(self, key: str, path: FilePath, file: BinaryIO, conditions: WriteConditions) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                with self._parent(path) as parent:
                    before = self._replaced(key, parent, path.name)
                    rules.check_put(conditions, before)
                    if before is None:
                        give_name(file, parent, path.name)
                    else:
                        put_in_place(file, parent, path.name, HIDDEN_PREFIX)
                    os.fsync(parent.descriptor)
                return
            except (FileNotFoundError, FileExistsError):  # somebody removed the folder, or made the file
                if attempt == _ATTEMPTS - 1:
                    raise

    def _replaced(self, key: str, parent: Folder, name: str) -> ObjectVersion | None:
        """Return the object that a write replaces. Raises InvalidRequest where something else is there."""
        try:
            with parent.pinned(name) as pinned:
                state = os.fstat(pinned)
                if stat.S_ISDIR(state.st_mode):
                    raise InvalidRequest("A directory of the filesystem has this name. Choose another key.")
                return records.version(key, pinned, state)
        except FileNotFoundError:
            return None
        except UnsafePath as error:
            raise InvalidRequest(
                "What the filesystem has under this name is a link or no regular file, which is not replaced."
                " Remove it there, or choose another key."
            ) from error

    def _put_folder(
        self, key: str, path: FilePath, file: BinaryIO, record: FileRecord, conditions: WriteConditions
    ) -> ObjectVersion:
        try:
            if os.fstat(file.fileno()).st_size:
                raise InvalidRequest(
                    "A key that ends with a slash is a directory here, without content. Leave out the slash."
                )
            with _locked(key), self.root(make=True) as root:
                assert root is not None
                rules.check_put(conditions, object_at(root, key, path))
                with self._made(root, path.folders) as folder:
                    records.write(folder.descriptor, replace(record, etag=records.EMPTY_ETAG, checksum=None))
                    os.fsync(folder.descriptor)
                    return records.version(key, folder.descriptor, os.fstat(folder.descriptor))
        except OSError as error:
            raise_explained(error)

    @contextmanager
    def _parent(self, path: FilePath) -> Generator[Folder, None, None]:
        with self.root(make=True) as root:
            assert root is not None
            with self._made(root, path.folders) as parent:
                yield parent

    def _made(self, folder: Folder, parts: tuple[str, ...] | list[str]) -> Folder:
        """Return the folder at the end of a path, made as far as it is not there."""
        owner = (self._view.uid, self._view.gid)
        current = folder.folder(".")
        for part in parts:
            with current:
                try:
                    current = make_owned(current, part, self._view.directory_mode, owner)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise_explained(error)
        return current

    def delete(self, key: str, conditions: WriteConditions) -> None:
        """Delete an object, and the folders that are empty then and were not put as objects. Raises
        ConditionFailed."""
        try:
            path = file_path(key)
        except (NoFile, KeyTooLong):
            return
        with _locked(key), self.root() as root:
            if root is None:
                return
            try:
                found = object_at(root, key, path)
                if found is None:
                    return
                rules.check_delete(conditions, found)
                if path.is_folder:
                    _delete_folder(root, path)
                else:
                    with root.folder("/".join(path.folders) or ".") as parent:
                        parent.unlink(path.name)
                        os.fsync(parent.descriptor)
                _prune(root, path.folders[:-1] if path.is_folder else path.folders)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise_explained(error)


def object_at(root: Folder, key: str, path: FilePath) -> ObjectVersion | None:
    """Return the object; None where there is none. Raises OSError other than that it is not there."""
    try:
        with root.pinned(path.path) as pinned:
            state = os.fstat(pinned)
            if stat.S_ISDIR(state.st_mode) != path.is_folder:
                return None
            if path.is_folder:
                with root.folder(path.path) as folder:
                    if not is_object(folder):
                        return None
            return records.version(key, pinned, state)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


def _nothing_of(root: Folder, key: str, path: FilePath) -> tuple[BinaryIO, ObjectVersion, os.stat_result]:
    """Return the content of a folder, which is empty. Raises NoSuchKey."""
    found = object_at(root, key, path)
    if found is None:
        raise no_such_key()
    empty = open(os.devnull, "rb", buffering=0)  # noqa: SIM115
    return empty, found, os.fstat(empty.fileno())


def is_object(folder: Folder) -> bool:
    """Return whether a folder is an object of its own: it is empty, or was put as one."""
    return next(folder.each_name(), None) is None or records.read(folder.descriptor) is not None


def _delete_folder(root: Folder, path: FilePath) -> None:
    """Remove an empty folder; one with content is not an object of its own any more."""
    *parents, name = path.folders
    with root.folder("/".join(parents) or ".") as parent:
        try:
            os.rmdir(name, dir_fd=parent.descriptor)
            os.fsync(parent.descriptor)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            with parent.folder(name) as folder:
                records.remove(folder.descriptor)


def _prune(root: Folder, folders: tuple[str, ...]) -> None:
    """Remove folders that are empty, the innermost first. None that holds anything can go."""
    for depth in range(len(folders), 0, -1):
        *parents, name = folders[:depth]
        with suppress(OSError), root.folder("/".join(parents) or ".") as parent:
            with parent.folder(name) as folder:
                if records.read(folder.descriptor) is not None:
                    return
            os.rmdir(name, dir_fd=parent.descriptor)
            continue
        return


@contextlib.contextmanager
def _locked(key: str) -> Generator[None, None, None]:
    with _LOCKS[hash(key) % len(_LOCKS)]:
        yield


def no_such_key() -> NoSuchKey:
    return NoSuchKey("The object does not exist.")


def raise_explained(error: OSError, what: str = "The path of the key") -> NoReturn:
    raise explained(error, what) from error


def explained(error: OSError, what: str = "The path of the key") -> ObjectStoreError:
    if error.errno in _FULL:
        return QuotaExceeded(
            "The filesystem of the bucket is full. Nothing was stored. Delete files, or make it larger."
        )
    if error.errno == errno.ENAMETOOLONG:
        return KeyTooLong("The filesystem has no names of this length.")
    if error.errno in _OCCUPIED:
        return InvalidRequest(
            f"{what} leads over a link, or over a file where a directory has to be. Remove that in the"
            " filesystem, or choose another."
        )
    if error.errno in _BUSY:
        return StoreBusy("The filesystem of the bucket cannot serve this now. Try again later.")
    return StoreUnavailable(
        f"The filesystem of the bucket failed ({os.strerror(error.errno or errno.EIO)}). Try again later; if"
        " this lasts, look at the filesystem."
    )
