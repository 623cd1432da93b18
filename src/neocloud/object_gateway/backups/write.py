"""Back up an object store into a folder, beside its gateway."""

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core.osfiles import sync_folder, write_file
from neocloud.core.sqlite_file import copy_file
from neocloud.core.untrusted.files import remove_tree
from neocloud.object_gateway.backups.location import (
    BLOBS,
    DRAFT,
    FIRST_FORMAT,
    FORMAT,
    LOCK,
    MARK,
    METADATA,
    POSTGRESQL,
    SNAPSHOTS,
    SQLITE,
    STAMP,
    Copied,
    ObjectBackupError,
    Show,
    copy_blobs,
    locked,
    read_mark,
    snapshots_of,
)
from neocloud.object_gateway.backups.snapshots import (
    NAMED,
    Facts,
    find_snapshot,
    key_check_of,
    reading,
    snapshot_at,
)
from neocloud.object_store.blobs.driver import NAME
from neocloud.object_store.metadata.location import is_in_postgresql, is_there, noted_address, open_beside

_MOST_ROUNDS = 20
"""Rounds of copying what is new, when objects are deleted before their blobs were copied."""


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
    if not is_there(store):
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
        if snapshot in snapshots_of(target):
            raise ObjectBackupError(f"There is a backup of {snapshot} already", "Try again in a second")
        suffix = POSTGRESQL if is_in_postgresql(store) else SQLITE
        path = target / SNAPSHOTS / f"{snapshot}{suffix}"
        draft = path.with_name(f"{DRAFT}{suffix}")
        copied, copied_bytes, facts = _copy_store(store, target, draft, show)
        draft.rename(path)
        sync_folder(path.parent)
        show("removing what no snapshot needs")
        for old in snapshots_of(target)[:-keep]:
            _remove(find_snapshot(target, old))
        sync_folder(path.parent)
        removed, left = _remove_unused(target), snapshots_of(target)
        return BackedUp(snapshot, facts.blobs, copied, copied_bytes, removed, left, facts.elsewhere)


def _copy_store(store: Path, target: Path, draft: Path, show: Show) -> tuple[int, int, Facts]:
    """Copy the metadata, then the blobs that they name, until none was deleted in between."""
    copied = copied_bytes = 0
    for _ in range(_MOST_ROUNDS):
        _remove(draft)
        show("copying the metadata")
        _copy_metadata(store, draft)
        snapshot = snapshot_at(draft)
        facts = snapshot.facts()
        done = Copied()  # bodies in another engine stay there
        if not facts.elsewhere:
            done = copy_blobs(store / BLOBS, target / BLOBS, snapshot.names(), facts.blobs, show)
        copied, copied_bytes = copied + done.number, copied_bytes + done.bytes
        if not done.missing:
            return copied, copied_bytes, facts
        if _are_named(store, done.missing):
            raise ObjectBackupError(
                f"Blob {done.missing[0]} is missing in the store, and {len(done.missing) - 1} more",
                "`neo storage verify` lists the objects that are damaged; delete them, then back up again",
            )
    raise ObjectBackupError(
        "Objects are deleted faster than they are copied", "Back up when less is going on"
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _copy_metadata(store: Path, draft: Path) -> None:
    if draft.suffix == POSTGRESQL:
        from neocloud.object_gateway.backups import postgres  # noqa: PLC0415  it takes a while to load

        draft.mkdir(mode=0o700)
        postgres.dump(store, noted_address(store), draft)
        return
    draft.touch(mode=0o600)
    source = store / METADATA
    try:
        copy_file(source, draft)
    except sqlite3.Error as error:
        raise ObjectBackupError(f"{source} cannot be copied: {error}", "Is one of the disks full?") from None
    descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _are_named(store: Path, names: list[str]) -> bool:
    """Return whether the store itself still names one of these blobs."""
    if is_in_postgresql(store):
        from neocloud.object_gateway.backups import postgres  # noqa: PLC0415

        return postgres.still_named(store, names)
    with closing(reading(store / METADATA)) as connection:
        return any(connection.execute(f"{NAMED} AND blob = ?", (name,)).fetchone() for name in names)


def _remove_unused(target: Path) -> int:
    named: set[str] = set()
    for snapshot in snapshots_of(target):
        named.update(snapshot_at(find_snapshot(target, snapshot)).names())
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
    own, number = _store_id(store), FORMAT if is_in_postgresql(store) else FIRST_FORMAT
    for name in (BLOBS, SNAPSHOTS):
        (target / name).mkdir(mode=0o700, exist_ok=True)
    if not (target / MARK).exists():
        write_file(target / MARK, json.dumps({"format": number, "store": own}), durable=True)
    elif (found := read_mark(target)) != own:
        raise ObjectBackupError(
            f"{target} has the backup of another object store ({found[:12]}, not {own[:12]})",
            "Name another folder",
        )


def _store_id(store: Path) -> str:
    """Return what tells one store from all others, whatever is in it. Raises ObjectBackupError."""
    if is_in_postgresql(store):
        from neocloud.object_gateway.backups.postgres import key_check  # noqa: PLC0415

        with closing(open_beside(store)) as connection:
            return hashlib.sha256(key_check(connection)).hexdigest()
    with closing(reading(store / METADATA)) as connection:
        return hashlib.sha256(key_check_of(connection, store / METADATA)).hexdigest()
