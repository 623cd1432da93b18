"""The file of a cluster's backup: a plain tar of four members, always in this order.

manifest.json         the cluster's name and spec, and what it ran
accounting.zst        a dump of Slurm's accounting, as BackupService gives it
shared-root.tar.zst   the files
SHA256SUMS            for `sha256sum --check`

`tar` reads it. It is checked whole before anything is restored, in memory that does not depend on what it
says.
"""

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from neocloud.client.errors import ClientError
from neocloud.core.json_values import is_object

MANIFEST, ACCOUNTING, FILES, SUMS = "manifest.json", "accounting.zst", "shared-root.tar.zst", "SHA256SUMS"
FORMAT = 1
CHUNK_BYTES = 1024**2
MAX_TEXT_BYTES = 4 * 1024**2
"""Limit of the manifest and of the sums, which are read into memory."""
_BLOCK = tarfile.BLOCKSIZE


class Writer:
    """Writes the members one after another; a member's size is known once it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sums = ""

    def add(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a member; return its size."""
        start, size, digest = self._file.tell(), 0, hashlib.sha256()
        self._file.write(bytes(_BLOCK))
        for chunk in chunks:
            self._file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        self._file.write(bytes(-size % _BLOCK))
        end = self._file.tell()
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._file.seek(start)
        self._file.write(info.tobuf(tarfile.GNU_FORMAT))
        self._file.seek(end)
        self._sums += f"{digest.hexdigest()}  {name}\n"
        return size

    def finish(self) -> None:
        """Write the sums and the end, down to the disk."""
        self.add(SUMS, [self._sums.encode()])
        self._file.write(bytes(2 * _BLOCK))
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def new_file(target: Path, *, replace: bool) -> Generator[Writer]:
    """Yield the writer of a file that gets its name when the body has succeeded; else nothing is left."""
    refuse_existing(target, replace=replace)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield Writer(file)
        if replace:
            os.replace(name, target)
        else:
            os.link(name, target)  # unlike a rename it replaces nothing that came meanwhile
    except FileExistsError:
        refuse_existing(target, replace=False)
        raise
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def refuse_existing(target: Path, *, replace: bool) -> None:
    if os.path.lexists(target) and not (replace and target.is_file()):
        hint = "Name another file" if replace else "Name another file, or add --force"
        raise ClientError("ALREADY_EXISTS", f"{target} exists already", hint)


def _unwritable(target: Path, error: OSError) -> ClientError:
    return ClientError(
        "FAILED_PRECONDITION",
        f"{target} was not written: {error.strerror or error}",
        "Check the folder, its free space, and who may write there",
    )


@dataclass(frozen=True)
class Part:
    """A member in an open file."""

    file: BinaryIO
    offset: int
    size: int

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        for start in range(0, self.size, size):
            self.file.seek(self.offset + start)
            yield _exactly(self.file, min(size, self.size - start))


class Member(Protocol):
    """The content of a backup, in a file or as an object."""

    @property
    def size(self) -> int: ...

    def chunks(self, size: int = ...) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Contents:
    manifest: Mapping[str, object]
    accounting: Member
    files: Member


def read_backup(file: BinaryIO) -> Contents:
    """Check the whole file against its sums, and return its members. Raises ClientError."""
    parts: dict[str, Part] = {}
    sums = ""
    for name in (MANIFEST, ACCOUNTING, FILES):
        parts[name] = part = _next_member(file, name)
        digest = hashlib.sha256()
        for chunk in part.chunks():
            digest.update(chunk)
        sums += f"{digest.hexdigest()}  {name}\n"
        _exactly(file, -part.size % _BLOCK)
    if _text(_next_member(file, SUMS)) != sums.encode():
        raise damaged("its content does not have the sums that it names")
    return Contents(manifest_of(_text(parts[MANIFEST])), parts[ACCOUNTING], parts[FILES])


def _next_member(file: BinaryIO, name: str) -> Part:
    try:
        info = tarfile.TarInfo.frombuf(_exactly(file, _BLOCK), "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise damaged(str(error)) from error
    if info.name != name or info.type != tarfile.REGTYPE or info.size < 0:
        raise damaged(f"{name} is not where it should be")
    return Part(file, file.tell(), info.size)


def _text(part: Part) -> bytes:
    if part.size > MAX_TEXT_BYTES:
        raise damaged("a text in it is too long")
    return b"".join(part.chunks())


def manifest_of(text: bytes) -> Mapping[str, object]:
    """Return the manifest that a text is. Raises ClientError."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{MANIFEST} is not JSON") from error
    if not is_object(manifest) or not isinstance(manifest.get("format"), int):
        raise damaged(f"{MANIFEST} does not say its format")
    if manifest["format"] != FORMAT:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"The backup has format {manifest['format']}, which this release does not know",
            "Use the release of Neocloud that made it, or a newer one",
        )
    return manifest


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise damaged("it ends too early")
    return data


def damaged(why: str) -> ClientError:
    return ClientError(
        "FAILED_PRECONDITION",
        f"This is not a backup of a cluster, or it is damaged: {why}",
        "Use another copy of it",
    )
