"""An append-only file of records, for the process that forwards them. Bounded, and on the disk before
anything else.

Each line is one JSON object with a number `n`. The process that forwarded records writes the number of the
last into the file `acknowledged` beside it; those up to it are dropped then. A partial line, left by an end
of this process or of the power, is removed when the file is opened.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import PRIVATE, sync_folder, write_file

RECORDS, ACKNOWLEDGED, LOCK = "records.jsonl", "acknowledged", "lock"
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 30
DEFAULT_BYTES = 8 << 20
RESERVE_BYTES = 4096
"""For the record that says that it is full."""


class SpoolError(OSError):
    """The spool cannot be used; says why and what to do."""


class Spool:
    """The spool in a folder of this process alone."""

    def __init__(self, folder: Path, most_bytes: int = DEFAULT_BYTES) -> None:
        """Raises SpoolError, OSError."""
        if not LEAST_BYTES <= most_bytes <= MOST_BYTES:
            raise SpoolError(f"The size of the spool is from {LEAST_BYTES} to {MOST_BYTES} bytes")
        self._folder, self._most = folder, most_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(folder)
        self._file = _open(folder / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        sync_folder(folder)
        self._size = _remove_torn_end(self._file)
        self.last = max((each["n"] for each in self.records()), default=0)
        self.is_full = False

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    @property
    def size(self) -> int:
        return self._size

    def continue_after(self, n: int) -> None:
        """Give new records higher numbers than `n`, which an earlier one had that is dropped."""
        self.last = max(self.last, n)

    def append(self, kind: str, content: Mapping[str, object]) -> bool:
        """Append a record; it is on the disk when this returns. Return False where there is no room.

        The first that finds no room leaves a record of the kind `full` in its place. Raises OSError.
        """
        line = _line(self.last + 1, kind, content)
        if self._size + len(line) > self._most - RESERVE_BYTES:
            if not self.is_full:
                self.is_full = True
                self._write(_line(self.last + 1, "full", {"bytes": self._size, "most_bytes": self._most}))
            return False
        self.is_full = False
        self._write(line)
        return True

    def _write(self, line: bytes) -> None:
        if self._size + len(line) > self._most:
            return
        start = self._size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise
        self._size += len(line)
        self.last += 1

    def records(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the records with a number above `after`, in order. A line that is no record is left out."""
        yield from records_in(self._folder / RECORDS, after)

    def drop_acknowledged(self) -> int:
        """Drop the records that were forwarded. Return the number of the last of them. Raises OSError."""
        n = _number(self._folder / ACKNOWLEDGED)
        kept = list(self.records(after=n))
        first = next(self.records(), None)
        if first is None or first["n"] > n:
            return n
        content = b"".join(_encoded(each) for each in kept)
        write_file(self._folder / RECORDS, content, durable=True)
        os.close(self._file)
        self._file = _open(self._folder / RECORDS, os.O_RDWR | os.O_APPEND)
        self._size = len(content)
        return n

    def has_acknowledged(self) -> bool:
        """Return whether there are records to drop."""
        first = next(self.records(), None)
        return first is not None and first["n"] <= _number(self._folder / ACKNOWLEDGED)


def records_in(path: Path, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the records of a file with a number above `after`. Another process may append to it meanwhile."""
    with open(path, "rb") as file:
        for line in file:
            record = _record(line)
            if record is not None and record["n"] > after:
                yield record


def _line(n: int, kind: str, content: Mapping[str, object]) -> bytes:
    return _encoded({"n": n, "kind": kind, **content})


def _encoded(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("n")) is int else None  # pyright: ignore


def _number(path: Path) -> int:
    """Return the number in a file; 0 where there is none, or no file that is one."""
    try:
        descriptor = _open(path, os.O_RDONLY)
        try:
            return int(os.read(descriptor, 32))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return 0


def _open(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SpoolError(f"{path} is not a file; remove it, or choose another folder")
    return descriptor


def _locked(folder: Path) -> int:
    descriptor = _open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolError(f"Another agent writes to {folder}; end it, or choose another folder") from None
    return descriptor


def _remove_torn_end(descriptor: int) -> int:
    """Return the size of the file after what is left of an unfinished line is removed."""
    size = os.fstat(descriptor).st_size
    end = size
    while end:
        start = max(0, end - 4096)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    return end
