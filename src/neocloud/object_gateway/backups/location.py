"""The folder that has the backup of an object store, and how blobs get into it and out of it.

    <folder>/neocloud-objects.json              of which store the backup is
    <folder>/blobs/ab/<name>                    sealed bodies, each once
    <folder>/snapshots/20261126T204500Z.db      the metadata of a moment; complete when it has this name
    <folder>/snapshots/20261126T204500Z.pg/     the same of a store whose metadata are in PostgreSQL

Blobs never change, so a backup copies those that are new since the last one, and several snapshots share
them. Bodies stay encrypted: the key of the store is in the backup of the state (`neo backup`), not here.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core.osfiles import Locked, sync_folder, take_lock
from neocloud.object_store.blobs.driver import NAME

MARK, BLOBS, SNAPSHOTS, METADATA = "neocloud-objects.json", "blobs", "snapshots", "meta.db"
LOCK = "lock"
SQLITE, POSTGRESQL = ".db", ".pg"
FORMAT = 2
"""2 has snapshots of PostgreSQL, whose blobs a release that knows 1 alone would remove."""
FIRST_FORMAT = 1
STAMP = "%Y%m%dT%H%M%SZ"
DRAFT = ".draft"
_THREADS = 4

Show = Callable[[str], None]


class ObjectBackupError(Exception):
    """The message says what happened; `next_step` what to do about it."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(what)
        self.next_step = next_step


def snapshots_of(target: Path) -> tuple[str, ...]:
    """Return the complete snapshots, oldest first."""
    try:
        found = sorted(
            path.stem for path in (target / SNAPSHOTS).iterdir() if path.suffix in (SQLITE, POSTGRESQL)
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(each for each in found if _time_of(each) is not None)


def read_mark(target: Path) -> str:
    """Return of which store the backup is. Raises ObjectBackupError."""
    try:
        document = json.loads((target / MARK).read_text())
        number, store = int(document["format"]), str(document["store"])
    except (OSError, ValueError, TypeError, KeyError):
        raise ObjectBackupError(f"{target} holds no backup of objects", "Name another folder") from None
    if number > FORMAT:
        raise ObjectBackupError(f"{target} was written by a newer release", "Use that release, or a later")
    return store


@dataclass
class Copied:
    number: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list[str])
    """Names of blobs that the source does not have."""


def copy_blobs(source: Path, target: Path, names: Iterable[str], total: int, show: Show) -> Copied:
    """Copy the blobs that the target does not have; durably, each whole or not."""
    done, seen = Copied(), 0
    folders: set[Path] = set()

    def copy(name: str) -> int | None:
        """Return the bytes; -1 where it is there already, None where the source has none."""
        place = _blob(target, name)
        if place.exists():
            return -1
        try:
            return copy_file(_blob(source, name), place)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(_THREADS) as threads:
        for batch in _batches(names):
            for folder in {_blob(target, name).parent for name in batch} - folders:
                folder.mkdir(exist_ok=True, mode=0o700)
                folders.add(folder)
            for name, size in zip(batch, threads.map(copy, batch), strict=True):
                if size is None:
                    done.missing.append(name)
                elif size >= 0:
                    done.number, done.bytes = done.number + 1, done.bytes + size
            seen += len(batch)
            show(f"blob {seen:,} of {total:,}; {done.number:,} new, {done.bytes / 1024**2:,.0f} MiB")
    for folder in (*folders, target):
        sync_folder(folder)
    return done


def copy_file(source: Path, place: Path) -> int:
    """Copy durably, and return the bytes; the name appears when they are on the disk."""
    draft = place.with_name(place.name + DRAFT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as reading:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as writing:
            shutil.copyfileobj(reading, writing, 1024**2)
            writing.flush()
            os.fsync(writing.fileno())
            size = writing.tell()
        draft.rename(place)
    return size


@contextmanager
def locked(target: Path) -> Generator[None]:
    """One command works on a backup at a time. Raises ObjectBackupError."""
    try:
        lock = take_lock(target / LOCK)
    except Locked as error:
        raise ObjectBackupError(
            f"Process {error.holder} works on {target}", "Wait for it, or name another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _blob(folder: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ObjectBackupError(f"{name!r} is not the name of a blob", "Restore another snapshot")
    return folder / name[:2] / name


def _batches(names: Iterable[str], size: int = 64) -> Iterator[list[str]]:
    batch: list[str] = []
    for name in names:
        batch.append(name)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _time_of(snapshot: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.strptime(snapshot, STAMP).replace(tzinfo=UTC)
    return None
