"""Restore the backup of an object store into a state folder, and a database, without objects."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.osfiles import sync_folder
from neocloud.core.sqlite_file import SqliteFileError, lock_file
from neocloud.core.untrusted.files import remove_tree
from neocloud.object_gateway.backups.location import (
    BLOBS,
    DRAFT,
    METADATA,
    POSTGRESQL,
    Copied,
    ObjectBackupError,
    Show,
    copy_blobs,
    copy_file,
    locked,
    read_mark,
    snapshots_of,
)
from neocloud.object_gateway.backups.snapshots import (
    Facts,
    PostgresSnapshot,
    find_snapshot,
    reading,
    snapshot_at,
)
from neocloud.object_store.blobs.sealing import KeySealer, NotAuthentic
from neocloud.object_store.metadata.location import is_in_postgresql, note_address, read_address
from neocloud.object_store.metadata.schema import MIGRATIONS


@dataclass(frozen=True)
class Restored:
    snapshot: str
    versions: int
    blobs: int
    bytes: int


def restore(
    target: Path, store: Path, key: bytes, snapshot: str | None, show: Show, address_file: Path | None = None
) -> Restored:
    """Restore a snapshot (None: the newest) into the folder of a store that holds no object.

    `key` is that of the store. `address_file` has the address of a database for metadata that were in
    PostgreSQL. The metadata come last, so a restore that was stopped can be repeated. Raises
    ObjectBackupError, StoreUnavailable, OSError.
    """
    read_mark(target)
    with locked(target):
        path, facts = _checked(target, key, snapshot, show)
        if path.suffix == POSTGRESQL:
            return _restored_to_postgresql(target, path, facts, store, address_file, show)
        if is_in_postgresql(store):
            raise ObjectBackupError(
                "The metadata of this cloud's objects are in PostgreSQL, and those of the backup in a file",
                "Restore into a cloud whose metadata are in its state folder",
            )
        try:
            lock = lock_file(store / METADATA)
        except SqliteFileError:
            raise ObjectBackupError("The object gateway runs", "Stop the cloud first: neo down") from None
        try:
            _refuse_used(store / METADATA)
            return _restored(target, path, facts, store, show)
        finally:
            lock.release()


def _restored(target: Path, path: Path, facts: Facts, store: Path, show: Show) -> Restored:
    draft = _empty_draft(store)
    done = _copy_bodies(target, path, facts, draft, show)
    copy_file(path, draft / METADATA)
    for end in ("", "-wal", "-shm"):
        (store / f"{METADATA}{end}").unlink(missing_ok=True)
    _place_bodies(draft, store)
    (draft / METADATA).rename(store / METADATA)
    draft.rmdir()
    sync_folder(store)
    return Restored(path.stem, facts.versions, done.number, done.bytes)


def _restored_to_postgresql(
    target: Path, path: Path, facts: Facts, store: Path, address_file: Path | None, show: Show
) -> Restored:
    from neocloud.object_gateway.backups import postgres  # noqa: PLC0415  it takes a while to load

    if address_file is None:
        raise ObjectBackupError(
            "The metadata of the backup were in PostgreSQL, and this cloud has no address of a database",
            "Write its address to a file of mode 0600, and name that with --object-metadata",
        )
    if (store / METADATA).exists():
        _refuse_used(store / METADATA)
        raise ObjectBackupError(
            f"The metadata of this cloud's objects are in {store / METADATA}, and those of the backup were in"
            " PostgreSQL",
            "Restore into a cloud that has not been started yet",
        )
    address = read_address(address_file)
    with postgres.alone(address):
        draft = _empty_draft(store)
        done = _copy_bodies(target, path, facts, draft, show)
        _place_bodies(draft, store)
        draft.rmdir()
        sync_folder(store)
    show("restoring the metadata")
    postgres.load(PostgresSnapshot(path), facts, address)
    note_address(store, address_file)
    return Restored(path.stem, facts.versions, done.number, done.bytes)


def _empty_draft(store: Path) -> Path:
    draft = store / DRAFT
    if draft.exists():
        remove_tree(draft)
    draft.mkdir(mode=0o700)
    (draft / BLOBS).mkdir(mode=0o700)
    return draft


def _copy_bodies(target: Path, path: Path, facts: Facts, draft: Path, show: Show) -> Copied:
    if facts.elsewhere:
        return Copied()
    names = snapshot_at(path).names()
    done = copy_blobs(target / BLOBS, draft / BLOBS, names, facts.blobs, show)
    if done.missing:
        raise ObjectBackupError(
            f"Blob {done.missing[0]} is missing in the backup, and {len(done.missing) - 1} more",
            "Restore another snapshot, or another copy of the backup",
        )
    return done


def _place_bodies(draft: Path, store: Path) -> None:
    if (store / BLOBS).exists():
        remove_tree(store / BLOBS)
    (draft / BLOBS).rename(store / BLOBS)


def _checked(target: Path, key: bytes, snapshot: str | None, show: Show) -> tuple[Path, Facts]:
    """Return the metadata of the snapshot, which this release and this key can read."""
    found = snapshots_of(target)
    if not found or (snapshot is not None and snapshot not in found):
        there = ", ".join(found) or "none"
        raise ObjectBackupError(f"There is no such snapshot in {target}; there are: {there}", "Name another")
    path = find_snapshot(target, snapshot or found[-1])
    show("checking the metadata")
    chosen = snapshot_at(path)
    chosen.check()
    facts = chosen.facts()
    if facts.schema_version > len(MIGRATIONS):
        raise ObjectBackupError(f"{path} was written by a newer release", "Install that release first")
    try:
        KeySealer(key).open(facts.key_check)
    except NotAuthentic:
        raise ObjectBackupError(
            "The key of this state folder does not open the backup",
            "Restore the state of the cloud that it was made of first: neo restore",
        ) from None
    return path, facts


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
