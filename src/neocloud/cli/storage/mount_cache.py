"""The cache of a mount: what was read stays on this machine's disk, for its owner alone.

rclone compares size, time and hash of an object with those of the copy before it uses the copy, and lists the
folder again after some seconds: who has lost the right then reads nothing from the cache. Written data are
not cached.
"""

import hashlib
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neocloud.cli.storage.places import BucketPlace
from neocloud.client.errors import ClientError
from neocloud.core.osfiles import OTHERS, Locked, take_lock

DEFAULT_SIZE = "10G"
KEPT_HOURS = 720
"""How long a copy is kept that nobody reads, where there is room."""
_SIZE = re.compile(r"[1-9][0-9]{0,5}[MGT]")


@dataclass(frozen=True)
class MountCache:
    folder: Path
    size: str

    def options(self) -> tuple[str, ...]:
        return (
            "--vfs-cache-mode=full",
            f"--cache-dir={self.folder}",
            f"--vfs-cache-max-size={self.size}",
            f"--vfs-cache-max-age={KEPT_HOURS}h",
        )


def size_of(text: str) -> str:
    """Return a size as rclone reads it, in powers of 1,024. Raises ClientError."""
    if not _SIZE.fullmatch(text):
        raise ClientError("INVALID_ARGUMENT", f"{text!r} is not a size", "Write 500M, 20G or 1T")
    return text


@contextmanager
def prepared(folder: Path, size: str, url: str, place: BucketPlace) -> Generator[MountCache]:
    """Yield the cache of a place of the cloud at `url`, which no other mount uses meanwhile."""
    _require_private(folder)
    name = hashlib.sha256(f"{url}\n{place.bucket}/{place.prefix}".encode()).hexdigest()[:16]
    own = folder / name
    own.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = take_lock(folder / f"{name}.lock")
    except Locked as error:
        raise ClientError(
            "ALREADY_EXISTS",
            f"Another mount of {place} uses the cache {folder} (process {error.holder})",
            "Name another folder with --cache",
        ) from None
    try:
        yield MountCache(own, size)
    finally:
        lock.release()


def _require_private(folder: Path) -> None:
    """Create the folder. Raise ClientError where others could read or change what is in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{folder}: {error.strerror}", "Name a folder with --cache"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ClientError(
            "FAILED_PRECONDITION", f"{folder} is not a folder of yours", "Name another one with --cache"
        )
    if found.st_mode & OTHERS:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{folder} is open to other users, who would read what you read",
            f"chmod 700 {folder}",
        )
