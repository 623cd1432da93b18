# pyright: strict
"""Where the blobs of a store are, as the store itself remembers it: a store is never opened with another
driver than the one that has its blobs."""

import json
import secrets
import sqlite3
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from neocloud.objects.blobs.driver import BlobDriver
from neocloud.objects.blobs.files import FileBlobs
from neocloud.objects.blobs.s3.driver import Ownership, S3Blobs
from neocloud.objects.blobs.s3.place import S3Place
from neocloud.objects.errors import StoreUnavailable
from neocloud.objects.metadata.database import Database
from neocloud.objects.metadata.transaction import Transaction

_FACT = "blobs"
_FOLDER = "blobs"


@dataclass(frozen=True)
class _Kept:
    """The place of a store that has its blobs in another engine."""

    name: str
    owner: str
    """What the mark in the place says."""
    is_claimed: bool
    endpoint: str
    region: str
    credentials_file: str

    def place(self) -> S3Place:
        bucket, _, prefix = self.name.removeprefix("s3://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        return S3Place(bucket, prefix, self.endpoint, self.region, Path(self.credentials_file))


def known_driver(database: Database, home: Path, executor: Executor) -> BlobDriver:
    """Return the driver of a store, to read with. Raises StoreUnavailable."""
    kept = _read(database.reading)
    if kept is None:
        return FileBlobs(home / _FOLDER, executor)
    return _s3(kept.place(), Ownership(kept.owner, True, _nothing), home, executor)


async def driver_for(database: Database, home: Path, executor: Executor, place: S3Place | None) -> BlobDriver:
    """Return the driver for a place (None: files in the store's folder), and remember it.
    Raises StoreUnavailable where the blobs are elsewhere."""
    kept = _read(database.reading)
    if problem := _problem(database.reading, kept, place):
        raise StoreUnavailable(problem)
    if place is None:
        if kept is not None:
            await database.write(_forget)
        return FileBlobs(home / _FOLDER, executor)
    if kept is None or kept.name != place.name:
        kept = _Kept(place.name, secrets.token_hex(16), False, "", "", "")
    wanted = replace(
        kept, endpoint=place.endpoint, region=place.region, credentials_file=str(place.credentials_file)
    )
    await database.write(lambda tx: _keep(tx, wanted))

    async def claimed() -> None:
        await database.write(lambda tx: _keep(tx, replace(wanted, is_claimed=True)))

    return _s3(place, Ownership(wanted.owner, wanted.is_claimed, claimed), home, executor)


def engine_of(connection: sqlite3.Connection) -> str:
    """Return the name of the place in another engine that has the blobs; "" where they are in files."""
    kept = _read(connection)
    return kept.name if kept is not None else ""


def problem_with(home: Path, place: S3Place | None) -> str:
    """Return why the store in a folder cannot be opened with this place; "": nothing is known against it."""
    path = home / "meta.db"
    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return _problem(connection, _read(connection), place)
    except sqlite3.Error:
        return ""  # the gateway says what is wrong with the file


def _problem(connection: sqlite3.Connection, kept: _Kept | None, place: S3Place | None) -> str:
    before, now = kept.name if kept else "", place.name if place else ""
    if before == now:
        return ""
    (is_used,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM content WHERE blob IS NOT NULL) OR EXISTS (SELECT 1 FROM garbage)"
    ).fetchone()
    if not is_used:
        return ""
    where, wanted = before or "the folder of the object store", now or "that folder"
    again = f"--object-blobs {before}" if before else "--object-blobs none"
    return (
        f"The bodies of the objects are in {where}, not in {wanted}, and are not moved. Start with"
        f" {again}; or copy the objects to another cloud with a transfer."
    )


def _s3(place: S3Place, ownership: Ownership, home: Path, executor: Executor) -> S3Blobs:
    try:
        return S3Blobs(place, ownership, home, executor)
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StoreUnavailable(
            f"The key of {place.name} in {place.credentials_file} cannot be used: {why}."
        ) from error


def _read(connection: sqlite3.Connection) -> _Kept | None:
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (_FACT,)).fetchone()
    return None if row is None else _Kept(**json.loads(row[0]))


def _forget(tx: Transaction) -> None:
    tx.connection.execute("DELETE FROM fact WHERE name = ?", (_FACT,))


def _keep(tx: Transaction, kept: _Kept) -> None:
    tx.connection.execute(
        "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (_FACT, json.dumps(asdict(kept)).encode()),
    )


async def _nothing() -> None:
    pass
