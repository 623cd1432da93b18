# pyright: strict
"""Restore the backup of an object store into a state folder without objects."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.osfiles import sync_folder
from neocloud.core.sqlite_file import SqliteFileError, lock_file
from neocloud.core.untrusted_files import remove_tree
from neocloud.objects.backups.place import (
    BLOBS,
    DRAFT,
    METADATA,
    SNAPSHOTS,
    ObjectBackupError,
    Show,
    copy_blobs,
    copy_file,
    key_check,
    locked,
    read_mark,
    reading,
    snapshots_of,
)
from neocloud.objects.blobs.sealing import KeySealer, NotAuthentic
from neocloud.objects.metadata.schema import MIGRATIONS


@dataclass(frozen=True)
class Restored:
    snapshot: str
    versions: int
    blobs: int
    bytes: int


def restore(target: Path, store: Path, key: bytes, snapshot: str | None, show: Show) -> Restored:
    """Restore a snapshot (None: the newest) into the folder of a store that holds no object.

    `key` is that of the store. The metadata come last, so a restore that was stopped can be repeated. Raises
    ObjectBackupError, OSError.
    """
    read_mark(target)
    with locked(target):
        database = _checked(target, key, snapshot, show)
        try:
            lock = lock_file(store / METADATA)
        except SqliteFileError:
            raise ObjectBackupError("The object gateway runs", "Stop the cloud first: neo down") from None
        try:
            _refuse_used(store / METADATA)
            return _restored(target, database, store, show)
        finally:
            lock.release()


def _restored(target: Path, database: Path, store: Path, show: Show) -> Restored:
    draft = store / DRAFT
    if draft.exists():
        remove_tree(draft)
    draft.mkdir(mode=0o700)
    (draft / BLOBS).mkdir(mode=0o700)
    with closing(reading(database)) as connection:
        (versions,) = connection.execute("SELECT COUNT(*) FROM version WHERE is_marker = 0").fetchone()
        done = copy_blobs(target / BLOBS, draft / BLOBS, connection, show)
    if done.missing:
        raise ObjectBackupError(
            f"Blob {done.missing[0]} is missing in the backup, and {len(done.missing) - 1} more",
            "Restore another snapshot, or another copy of the backup",
        )
    copy_file(database, draft / METADATA)
    for end in ("", "-wal", "-shm"):
        (store / f"{METADATA}{end}").unlink(missing_ok=True)
    if (store / BLOBS).exists():
        remove_tree(store / BLOBS)
    (draft / BLOBS).rename(store / BLOBS)
    (draft / METADATA).rename(store / METADATA)
    draft.rmdir()
    sync_folder(store)
    return Restored(database.stem, versions, done.number, done.bytes)


def _checked(target: Path, key: bytes, snapshot: str | None, show: Show) -> Path:
    """Return the metadata of the snapshot, which this release and this key can read."""
    found = snapshots_of(target)
    if not found or (snapshot is not None and snapshot not in found):
        there = ", ".join(found) or "none"
        raise ObjectBackupError(f"There is no such snapshot in {target}; there are: {there}", "Name another")
    database = target / SNAPSHOTS / f"{snapshot or found[-1]}.db"
    show("checking the metadata")
    try:
        with closing(reading(database)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            whole = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise ObjectBackupError(f"{database} cannot be read: {error}", "Restore another snapshot") from None
    if whole != ("ok",):
        raise ObjectBackupError(f"{database} is damaged", "Restore another snapshot")
    if version > len(MIGRATIONS):
        raise ObjectBackupError(f"{database} was written by a newer release", "Install that release first")
    try:
        KeySealer(key).open(key_check(database))
    except NotAuthentic:
        raise ObjectBackupError(
            "The key of this state folder does not open the backup",
            "Restore the state of the cloud that it was made of first: neo restore",
        ) from None
    return database


def _refuse_used(database: Path) -> None:
    if not database.exists():
        return
    try:
        with closing(reading(database)) as connection:
            used = connection.execute("SELECT 1 FROM content LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise ObjectBackupError(f"{database} cannot be read: {error}", "Move it away") from None
    if used:
        raise ObjectBackupError(
            f"{database.parent} holds objects already, and a backup is never restored over them",
            "Restore into a cloud without objects",
        )
