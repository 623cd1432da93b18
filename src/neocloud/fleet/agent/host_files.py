"""The files that probes read: those of this host, or of a tree in their shape that was captured or made up.

Each read is bounded. Answers that the kernel gives by a call and not by a file are in `@calls` of such a
tree.
"""

import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
MOST_ENTRIES = 4096
CALLS = "@calls"
_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000


@dataclass(frozen=True)
class FreeSpace:
    """Space of a filesystem by statvfs: bytes and inodes, free ones as a program without rights has them."""

    bytes_total: int
    bytes_used: int
    bytes_free: int
    inodes_total: int
    inodes_free: int


@dataclass(frozen=True)
class ClockState:
    """State of the kernel's clock, by adjtimex."""

    is_disciplined: bool
    offset_s: float


class Tree:
    """A root folder."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.is_host = root == Path("/")

    def path(self, name: str) -> Path:
        return self.root / name

    def text(self, name: str) -> str:
        """Return the content of a file without the last newline. Raises OSError, also for a large file."""
        descriptor = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            parts = list[bytes]()
            size = 0
            while chunk := os.read(descriptor, 1 << 16):
                parts.append(chunk)
                size += len(chunk)
                if size > MOST_BYTES:
                    raise OSError(f"{self.root / name} is larger than {MOST_BYTES:,} bytes")
        finally:
            os.close(descriptor)
        return b"".join(parts).decode(errors="replace").rstrip("\n")

    def optional(self, name: str) -> str | None:
        """Return the content of a file, or None where it is missing or the driver does not answer for it."""
        try:
            return self.text(name)
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Return a whole number in a file, or None where there is none."""
        try:
            return int(self.text(name))
        except (OSError, ValueError):
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where it is missing. Raises OSError."""
        found = list[str]()
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) >= MOST_ENTRIES:
                        break
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.root / name)

    def link_name(self, name: str) -> str:
        """Return the last part of where a link leads; "" where there is none."""
        try:
            return os.path.basename(os.readlink(self.root / name))
        except OSError:
            return ""

    def boot_id(self) -> str:
        """Return the id of the running boot. Raises OSError."""
        return self.text("proc/sys/kernel/random/boot_id").strip()

    def room(self, mount_point: str) -> FreeSpace:
        """Return the room of a filesystem. May block for as long as it does. Raises OSError."""
        if self.is_host:
            found = os.statvfs(mount_point)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            return FreeSpace(
                found.f_blocks * found.f_frsize, used, found.f_bavail * found.f_frsize,
                found.f_files, found.f_favail,
            )  # fmt: skip
        return FreeSpace(**self._call("statvfs")[mount_point])

    def clock(self) -> ClockState:
        """Return the state of the clock. Raises OSError."""
        if not self.is_host:
            return ClockState(**self._call("adjtimex"))
        return _adjtimex()

    def _call(self, name: str) -> Any:
        try:
            return json.loads(self.text(f"{CALLS}/{name}.json"))
        except ValueError as error:
            raise OSError(f"{CALLS}/{name}.json is not JSON") from error


class _Timex(ctypes.Structure):
    """struct timex of Linux on 64 bits, as far as it is read; the rest is room."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    ]


def _adjtimex() -> ClockState:
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex failed")
    offset_s = timex.offset / (1e9 if timex.status & _STA_NANO else 1e6)
    return ClockState(not timex.status & _STA_UNSYNC, offset_s)
