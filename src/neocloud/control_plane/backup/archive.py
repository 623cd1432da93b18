"""The archive in a backup: tar, compressed with gzip, of regular files alone.

`tar xz` reads it. Headers have 512 bytes each: links, devices and long headers are refused, so that reading
takes no memory for what a header claims.
"""

import gzip
import itertools
import os
import stat
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

_CHUNK_BYTES = 1024**2
_BLOCK = tarfile.BLOCKSIZE


class BackupError(Exception):
    """A backup cannot be written or read: what happened, and what to do next."""

    def __init__(self, what: str, next_step: str, *, is_conflict: bool = False) -> None:
        super().__init__(f"{what}. {next_step}.")
        self.what = what
        self.next_step = next_step
        self.is_conflict = is_conflict
        """Whether the file to be written exists already."""


def damaged(why: str) -> BackupError:
    return BackupError(f"The backup is damaged: {why}", "Use another copy of it")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading that has to be a regular one. Raises BackupError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}", "Name another file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackupError(f"{path} is not a regular file", "Name another file")
    return os.fdopen(descriptor, "rb")


class Watched(Protocol):
    error: BaseException | None


@contextmanager
def kept_error(stream: Watched) -> Generator[None, None, None]:
    """Keep what the block raises for `first_error_of`."""
    try:
        yield
    except BaseException as error:
        stream.error = error
        raise


class PackedFiles:
    """The archive of some files, read as a stream. `error` is the exception that ended it early."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._chunks = _packed(folder, names)
        self._rest = b""
        self.error: BaseException | None = None
        self.size = 0
        """Bytes read so far."""

    def read(self, size: int = -1, /) -> bytes:
        with kept_error(self):
            while not self._rest:
                if (chunk := next(self._chunks, None)) is None:
                    return b""
                self._rest = chunk
        count = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:count], self._rest[count:]
        self.size += len(data)
        return data


def _packed(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS + 16)
    for name in names:
        with (folder / name).open("rb") as file:
            state = os.fstat(file.fileno())
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = state.st_size, 0o600, int(state.st_mtime)
            yield packer.compress(info.tobuf(tarfile.GNU_FORMAT))
            while chunk := file.read(_CHUNK_BYTES):
                yield packer.compress(chunk)
            yield packer.compress(bytes(-state.st_size % _BLOCK))
    yield packer.compress(bytes(2 * _BLOCK)) + packer.flush()


@dataclass(frozen=True)
class Packed:
    """A file in an archive. Its chunks have to be read before the next file is."""

    name: str
    size: int
    chunks: Iterator[bytes]


def unpack(archive: BinaryIO) -> Iterator[Packed]:
    """Yield the files of a decrypted archive. Raises BackupError for whatever is not a regular file."""
    try:
        with gzip.GzipFile(fileobj=archive, mode="rb") as plain:
            while (block := _exactly(plain, _BLOCK)) != bytes(_BLOCK):
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
                if info.type != tarfile.REGTYPE or info.size < 0:
                    raise damaged(f"{info.name!r} in it is not a regular file")
                yield Packed(info.name, info.size, _chunks(plain, info.size))
                _exactly(plain, -info.size % _BLOCK)
    except (tarfile.HeaderError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise damaged(str(error)) from None


def _chunks(plain: gzip.GzipFile, size: int) -> Iterator[bytes]:
    for start in itertools.count(0, _CHUNK_BYTES):
        if start >= size:
            return
        yield _exactly(plain, min(_CHUNK_BYTES, size - start))


def _exactly(plain: gzip.GzipFile, size: int) -> bytes:
    data = plain.read(size)
    if len(data) < size:
        raise damaged("it ends in the middle of a file")
    return data
