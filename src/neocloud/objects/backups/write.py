# pyright: strict
"""Back up an object store into a folder, beside its gateway."""

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core.osfiles import sync_folder, write_file
from neocloud.core.sqlite_file import copy_file
from neocloud.objects.backups.place import (
    BLOBS,
    DRAFT,
    FORMAT,
    LOCK,
    MARK,
    METADATA,
    NAMED,
    SNAPSHOTS,
    STAMP,
    ObjectBackupError,
    Show,
    copy_blobs,
    locked,
    read_mark,
    reading,
    snapshots_of,
    store_id,
)
from neocloud.objects.blobs.driver import NAME
from neocloud.objects.blobs.record import engine_of
from neocloud.objects.metadata.place import is_in_postgresql

_MOST_ROUNDS = 20
"""Of copying what is new, when objects are deleted before their blobs were copied."""


@dataclass(frozen=True)
class BackedUp:
    snapshot: str
    """When it was made, in the form of STAMP."""
    blobs: int
    copied: int
    """Blobs that were not there from an earlier backup."""
    copied_bytes: int
    removed: int
    """Blobs that no snapshot needs any more."""
    snapshots: tuple[str, ...]
    """All that there are now, oldest first."""
    elsewhere: str
    """The place in another engine that has the bodies; they were not copied. "": they are here."""


def back_up(store: Path, target: Path, now: datetime, keep: int, show: Show) -> BackedUp:
    """Copy the store in its folder while its gateway runs or does not; keep the newest `keep` snapshots.

    An earlier backup stays whole until the new one is complete. Raises ObjectBackupError, OSError.
    """
    if is_in_postgresql(store):
        raise ObjectBackupError(
            "The metadata of the objects are in PostgreSQL, which this command does not back up",
            f"Back up that database with `pg_dump --schema=neocloud_objects`, and after it {store / BLOBS};"
            " the key is in `neo backup`",
        )
    if not (store / METADATA).is_file():
        raise ObjectBackupError(f"There is no object store in {store}", "Name the state folder with --home")
    if target.resolve().is_relative_to(store.parent.resolve()):
        raise ObjectBackupError(
            f"{target} lies in the state folder, which `neo destroy` removes", "Write the backup elsewhere"
        )
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_others(target)
    with locked(target):
        _claim(target, store)
        snapshot = now.astimezone(UTC).strftime(STAMP)
        path = target / SNAPSHOTS / f"{snapshot}.db"
        if path.exists():
            raise ObjectBackupError(f"There is a backup of {snapshot} already", "Try again in a second")
        draft = target / SNAPSHOTS / DRAFT
        copied, copied_bytes = _copy_store(store, target, draft, show)
        with closing(reading(draft)) as connection:
            elsewhere = engine_of(connection)
            (blobs,) = connection.execute(f"SELECT COUNT(*) FROM ({NAMED})").fetchone()  # nosec B608
        draft.rename(path)
        sync_folder(path.parent)
        show("removing what no snapshot needs")
        for old in snapshots_of(target)[:-keep]:
            (target / SNAPSHOTS / f"{old}.db").unlink()
        sync_folder(path.parent)
        removed = _remove_unused(target)
        return BackedUp(snapshot, blobs, copied, copied_bytes, removed, snapshots_of(target), elsewhere)


def _copy_store(store: Path, target: Path, draft: Path, show: Show) -> tuple[int, int]:
    """Copy the metadata, then the blobs that they name, until none was deleted in between."""
    copied = copied_bytes = 0
    for _ in range(_MOST_ROUNDS):
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        show("copying the metadata")
        _copy_metadata(store / METADATA, draft)
        with closing(reading(draft)) as connection:
            done = copy_blobs(store / BLOBS, target / BLOBS, connection, show)
        copied, copied_bytes = copied + done.number, copied_bytes + done.bytes
        if not done.missing:
            return copied, copied_bytes
        if not _were_deleted(store / METADATA, done.missing):
            raise ObjectBackupError(
                f"Blob {done.missing[0]} is missing in the store, and {len(done.missing) - 1} more",
                "`neo storage verify` lists the objects that are damaged; delete them, then back up again",
            )
    raise ObjectBackupError(
        "Objects are deleted faster than they are copied", "Back up when less is going on"
    )


def _copy_metadata(source: Path, target: Path) -> None:
    try:
        copy_file(source, target)
    except sqlite3.Error as error:
        raise ObjectBackupError(f"{source} cannot be copied: {error}", "Is one of the disks full?") from None
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _were_deleted(database: Path, names: list[str]) -> bool:
    """Whether the store itself does not name them any more."""
    with closing(reading(database)) as connection:
        found = (connection.execute(f"{NAMED} AND blob = ?", (name,)).fetchone() for name in names)
        return not any(found)


def _remove_unused(target: Path) -> int:
    named: set[str] = set()
    for snapshot in snapshots_of(target):
        with closing(reading(target / SNAPSHOTS / f"{snapshot}.db")) as connection:
            named.update(name for (name,) in connection.execute(NAMED))
    removed = 0
    for folder in (target / BLOBS).iterdir():
        for path in folder.iterdir():
            name = path.name.removesuffix(DRAFT)
            if NAME.fullmatch(name) and path.name not in named:
                path.unlink()
                removed += not path.name.endswith(DRAFT)
    return removed


def _refuse_others(target: Path) -> None:
    """Refuse a folder that has files of others, so that nothing is mixed with them."""
    if not (target / MARK).exists():
        others = {path.name for path in target.iterdir()} - {LOCK, BLOBS, SNAPSHOTS, "lost+found"}
        if others:
            raise ObjectBackupError(f"{target} holds other files ({min(others)})", "Name an empty folder")


def _claim(target: Path, store: Path) -> None:
    """Mark a new folder as the backup of this store. Raises ObjectBackupError for that of another."""
    own = store_id(store / METADATA)
    for name in (BLOBS, SNAPSHOTS):
        (target / name).mkdir(mode=0o700, exist_ok=True)
    if not (target / MARK).exists():
        write_file(target / MARK, json.dumps({"format": FORMAT, "store": own}), durable=True)
    elif (found := read_mark(target)) != own:
        raise ObjectBackupError(
            f"{target} has the backup of another object store ({found[:12]}, not {own[:12]})",
            "Name another folder",
        )
