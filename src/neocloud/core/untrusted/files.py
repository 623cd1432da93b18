"""Files below a folder in which somebody else can write: a tenant's volume, weights, what a container left.

A user who can write in a folder can put a link, a fifo or a device where a file was, between any two looks at
it. So nothing here acts on a path twice: a `Folder` is an open descriptor, every path is resolved below it by
the kernel (openat2, Linux 5.6) or one component at a time, and what was opened is looked at before it is
read. Only regular files and folders are opened; links are refused unless a caller allows those that stay
below the folder.

All calls block for as long as a disk does. A violation of a rule raises UnsafePath, an OSError.
"""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from neocloud.core.cleanup import undo_on_error

MAX_TREE_ENTRIES = 100_000
"""Files and folders that are copied or listed of one tree; a model has some hundred at most."""
MAX_TREE_DEPTH = 32
"""Deepest nesting of folders in a tree that is copied."""
MAX_READ_BYTES = 64 * 1024**2
"""Default limit of a file that is read as a whole."""

_OPENAT2 = 437  # the same number on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08  # linux/openat2.h
_ATTEMPTS = 64
"""openat2 answers EAGAIN when something was renamed meanwhile; renaming all the time leads to a refusal."""
_FICLONE = 0x40049409  # linux/fs.h
_NAMES_AT_ONCE = 1000
_CHUNK_BYTES = 8 * 1024**2
_LINK_ERRORS = frozenset({errno.ELOOP, errno.EXDEV})

_libc = ctypes.CDLL(None, use_errno=True)


class UnsafePath(OSError):
    """Raised for a link, for anything but a regular file or folder, and for content beyond a limit."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.ELOOP, why, str(path))
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Folder:
    """An open folder. Use it as a context manager; paths given to it are relative and cannot leave it."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Takes over the descriptor; `path` is only for messages."""
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """A folder whose path only the operator can change; links in the path are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)

    @contextlib.contextmanager
    def pinned(
        self, relative: str | PurePosixPath, *, inner_links: bool = False
    ) -> Generator[int, None, None]:
        """A descriptor (O_PATH) of the regular file or folder there, while the context lasts.

        `inner_links` follows relative links that stay below this folder. Raises UnsafePath;
        FileNotFoundError.
        """
        descriptor = _resolve(self.descriptor, PurePosixPath(relative), self.path, inner_links=inner_links)
        with _closing(descriptor):
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                kind = "is a link" if stat.S_ISLNK(mode) else "is neither a regular file nor a folder"
                raise UnsafePath(self.path / relative, kind)
            yield descriptor

    def folder(self, relative: str | PurePosixPath, *, inner_links: bool = False) -> "Folder":
        """Raises UnsafePath; FileNotFoundError; NotADirectoryError."""
        with self.pinned(relative, inner_links=inner_links) as pinned:
            return Folder(_reopened(pinned, os.O_RDONLY | os.O_DIRECTORY), self.path / relative)

    def file(self, relative: str | PurePosixPath, *, inner_links: bool = False) -> BinaryIO:
        """A regular file, open for reading. Raises UnsafePath; FileNotFoundError."""
        with self.pinned(relative, inner_links=inner_links) as pinned:
            if not stat.S_ISREG(os.fstat(pinned).st_mode):
                raise UnsafePath(self.path / relative, "is a folder where a file has to be")
            return os.fdopen(_reopened(pinned, os.O_RDONLY | os.O_NONBLOCK), "rb")

    def read(
        self,
        relative: str | PurePosixPath,
        *,
        limit: int = MAX_READ_BYTES,
        inner_links: bool = False,
    ) -> bytes:
        """A whole file. Raises UnsafePath, also when it has more than `limit` bytes; FileNotFoundError."""
        with self.file(relative, inner_links=inner_links) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise UnsafePath(self.path / relative, f"is larger than {limit:,} bytes")
        return content

    def part(self, relative: str | PurePosixPath, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes of a file from the offset on, and the size of the file. Raises UnsafePath;
        FileNotFoundError."""
        with self.file(relative) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(min(offset, size))
            return file.read(limit), size

    def state(self, relative: str | PurePosixPath, *, inner_links: bool = False) -> os.stat_result | None:
        """Return the state of a regular file or folder; None when there is none, or something else."""
        try:
            with self.pinned(relative, inner_links=inner_links) as pinned:
                return os.fstat(pinned)
        except OSError:
            return None

    def has_file(self, relative: str | PurePosixPath, *, inner_links: bool = False) -> bool:
        found = self.state(relative, inner_links=inner_links)
        return found is not None and stat.S_ISREG(found.st_mode)

    def each_name(self) -> Iterator[str]:
        """The names of all entries, in no order, however many there are."""
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                yield entry.name

    def names(self) -> list[str]:
        """Return the names of all entries, sorted. Raises UnsafePath when there are too many."""
        found: list[str] = []
        for name in self.each_name():
            found.append(name)
            if len(found) > MAX_TREE_ENTRIES:
                raise UnsafePath(self.path, f"holds more than {MAX_TREE_ENTRIES:,} files")
        return sorted(found)

    def make(self, name: str, mode: int = 0o755) -> "Folder":
        """The folder in it of this name, made if needed, with this mode whatever the umask.

        Raises UnsafePath when something else is there.
        """
        try:
            os.mkdir(_name(name), mode, dir_fd=self.descriptor)
        except FileExistsError:
            return self.folder(name)
        made = self.folder(name)
        os.fchmod(made.descriptor, mode)
        return made

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file there in one step, in place of a file or link of this name."""
        partial = f".{_name(name)}.{secrets.token_hex(4)}.partial"
        try:
            with self.new_file(partial, mode) as file:
                file.write(content)
            self.rename(partial, name)
        finally:
            self.unlink(partial)

    @contextlib.contextmanager
    def staged(self, name: str) -> Generator["Folder", None, None]:
        """Fill a new folder, which gets this name when the block ends, and is removed when that raises."""
        partial = f".{_name(name)}.partial"
        self.remove(partial)
        with undo_on_error(lambda: self.remove(partial)):
            with self.make(partial) as folder:
                yield folder
            self.rename(partial, name)

    def new_file(self, name: str, mode: int = 0o644) -> BinaryIO:
        """A file that was not there, open for writing. Raises FileExistsError, also for a link."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_name(name), flags, mode, dir_fd=self.descriptor)
        os.fchmod(descriptor, mode)
        return os.fdopen(descriptor, "wb")

    def append(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """At the end of a regular file, made if needed. Raises UnsafePath."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(_name(name), flags, mode, dir_fd=self.descriptor)
        except FileExistsError:
            with self.pinned(name) as pinned:
                if not stat.S_ISREG(os.fstat(pinned).st_mode):
                    raise UnsafePath(self.path / name, "is a folder where a file has to be") from None
                descriptor = _reopened(pinned, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        else:
            os.fchmod(descriptor, mode)
        with os.fdopen(descriptor, "ab", closefd=True) as file:
            file.write(content)

    def rename(self, name: str, to: str, target: "Folder | None" = None) -> None:
        """In one step, in place of a file of the new name; in `target`, or here."""
        there = (target or self).descriptor
        os.replace(_name(name), _name(to), src_dir_fd=self.descriptor, dst_dir_fd=there)

    def unlink(self, name: str) -> None:
        """A file or link, if it is there; never what a link points to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name(name), dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Whatever is there, folders with all they hold, however much and deep; links are removed, never
        followed. Memory and open files do not grow with the tree."""
        if self._unlinked(name):
            return
        with self.folder(name) as top:
            while names := list(itertools.islice(top.each_name(), _NAMES_AT_ONCE)):
                for each in names:
                    if top._unlinked(each):
                        continue
                    with top.folder(each) as inner:
                        inner._flatten_into(top)
                    os.rmdir(each, dir_fd=top.descriptor)
        os.rmdir(name, dir_fd=self.descriptor)

    def _flatten_into(self, top: "Folder") -> None:
        """Remove the files and move the folders to the top, where they wait for their turn."""
        while names := list(itertools.islice(self.each_name(), _NAMES_AT_ONCE)):
            for name in names:
                if not self._unlinked(name):
                    self.rename(name, secrets.token_hex(16), top)

    def _unlinked(self, name: str) -> bool:
        """False for a folder."""
        try:
            self.unlink(name)
        except IsADirectoryError:
            return False
        return True

    def copy_file(
        self,
        relative: str | PurePosixPath,
        target: "Folder",
        name: str,
        *,
        link: bool = False,
        exact: bool = False,
        inner_links: bool = False,
    ) -> None:
        """A regular file to a new one, which shares the bytes on disk where the file system can.

        `link` allows a hard link where it cannot; `exact` keeps owner and mode. Raises UnsafePath;
        FileNotFoundError; FileExistsError.
        """
        with self.file(relative, inner_links=inner_links) as source:
            if _copied(source.fileno(), target, name, only_shared=link, exact=exact):
                return
            target.unlink(name)
            try:
                own = f"/proc/self/fd/{source.fileno()}"
                os.link(own, name, dst_dir_fd=target.descriptor, follow_symlinks=True)
            except OSError:  # on another file system
                _copied(source.fileno(), target, name, only_shared=False, exact=exact)


def copy_facts(source: int, target: int) -> None:
    """Owner, mode and times."""
    state = os.fstat(source)
    os.fchown(target, state.st_uid, state.st_gid)
    os.fchmod(target, stat.S_IMODE(state.st_mode))
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def remove_tree(path: Path) -> None:
    """Delete what lies at a path, if anything; nobody else can write in its parent folder."""
    with contextlib.suppress(FileNotFoundError), Folder.open(path.parent) as parent:
        parent.remove(path.name)


def _resolve(folder: int, relative: PurePosixPath, path: Path, *, inner_links: bool) -> int:
    """An O_PATH descriptor; of a link itself where that comes last and links are not followed."""
    if relative.is_absolute() or ".." in relative.parts:
        raise UnsafePath(path / relative, "leads out of its folder")
    flags = os.O_PATH | os.O_CLOEXEC | (0 if inner_links else os.O_NOFOLLOW)
    how = _OpenHow(flags, 0, _BENEATH | _NO_MAGICLINKS | (0 if inner_links else _NO_SYMLINKS))
    for _ in range(_ATTEMPTS):
        name = ctypes.c_char_p(os.fsencode(relative))
        found = _libc.syscall(_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # an older kernel, or a filter that does not know the call
            return _walk(folder, relative, path)
        if number in _LINK_ERRORS:
            why = "leads out of its folder by a link" if inner_links else "has a link in its path"
            raise UnsafePath(path / relative, why)
        if number != errno.EAGAIN:
            raise OSError(number, os.strerror(number), str(path / relative))
    raise UnsafePath(path / relative, "is being moved about")


def _walk(folder: int, relative: PurePosixPath, path: Path) -> int:
    """One component at a time, following no link at all."""
    *folders, last = relative.parts or (".",)
    current = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    for part in folders:
        with _closing(current):
            if stat.S_ISLNK(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode):
                raise UnsafePath(path / relative, "has a link in its path")
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            current = os.open(part, flags, dir_fd=current)
    with _closing(current):
        return os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)


def _reopened(pinned: int, flags: int) -> int:
    """Another descriptor of the same file; nothing is looked up by name."""
    return os.open(f"/proc/self/fd/{pinned}", flags | os.O_CLOEXEC | os.O_NOCTTY)


def _copied(source: int, target: Folder, name: str, *, only_shared: bool, exact: bool) -> bool:
    """False where the file system cannot share bytes between files, and only that was asked for."""
    state = os.fstat(source)
    with target.new_file(name, stat.S_IMODE(state.st_mode) & 0o777) as file:
        try:
            fcntl.ioctl(file.fileno(), _FICLONE, source)
        except OSError:
            if only_shared:
                return False
            _copy_bytes(source, file.fileno(), state.st_size)
        if exact:
            copy_facts(source, file.fileno())
        else:
            os.utime(file.fileno(), ns=(state.st_atime_ns, state.st_mtime_ns))
    return True


def _copy_bytes(source: int, target: int, size: int) -> None:
    """Sparse where the original is."""
    os.ftruncate(target, size)
    place = 0
    while place < size:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        end = min(size, os.lseek(source, place, os.SEEK_HOLE))
        os.lseek(target, place, os.SEEK_SET)
        os.lseek(source, place, os.SEEK_SET)
        while place < end and (chunk := os.read(source, min(_CHUNK_BYTES, end - place))):
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
            place += len(chunk)
        if place < end:  # it became shorter
            return


@contextlib.contextmanager
def _closing(descriptor: int) -> Generator[int, None, None]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _name(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is not the name of one file")
    return name


def whole_lines(data: bytes, limit: int) -> bytes:
    """Return the data up to its last line end. Without one it is a part of a longer line: all of it where it
    has `limit` bytes, otherwise nothing yet."""
    end = data.rfind(b"\n") + 1
    return data[:end] if end or len(data) < limit else data
