"""The location of a store's blobs, as the store records it: a store is never opened with another driver than
the one that has its blobs.
"""

import json
import secrets
from concurrent.futures import Executor
from dataclasses import asdict, replace
from pathlib import Path

from neocloud.object_store.blobs.driver import BlobDriver
from neocloud.object_store.blobs.files import FileBlobs
from neocloud.object_store.blobs.location_record import FACT, RecordedLocation, problem_of, recorded_location
from neocloud.object_store.blobs.s3.driver import Ownership, S3Blobs
from neocloud.object_store.blobs.s3.location import S3Location
from neocloud.object_store.errors import StoreUnavailable
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import Transaction

_FOLDER = "blobs"


def known_driver(database: Database, home: Path, executor: Executor) -> BlobDriver:
    """Return the driver of a store, to read with. Raises StoreUnavailable."""
    kept = recorded_location(database.reading)
    if kept is None:
        return FileBlobs(home / _FOLDER, executor)
    return _s3(kept.location(), Ownership(kept.owner, True, _nothing), home, executor)


async def driver_for(
    database: Database, home: Path, executor: Executor, location: S3Location | None
) -> BlobDriver:
    """Return the driver for a location (None: files in the store's folder), and remember it.
    Raises StoreUnavailable where the blobs are elsewhere."""
    kept = recorded_location(database.reading)
    if problem := problem_of(database.reading, kept, location):
        raise StoreUnavailable(problem)
    if location is None:
        if kept is not None:
            await database.write(_forget)
        return FileBlobs(home / _FOLDER, executor)
    if kept is None or kept.name != location.name:
        kept = RecordedLocation(location.name, secrets.token_hex(16), False, "", "", "")
    wanted = replace(
        kept,
        endpoint=location.endpoint,
        region=location.region,
        credentials_file=str(location.credentials_file),
    )
    await database.write(lambda tx: _keep(tx, wanted))

    async def claimed() -> None:
        await database.write(lambda tx: _keep(tx, replace(wanted, is_claimed=True)))

    return _s3(location, Ownership(wanted.owner, wanted.is_claimed, claimed), home, executor)


def _s3(location: S3Location, ownership: Ownership, home: Path, executor: Executor) -> S3Blobs:
    try:
        return S3Blobs(location, ownership, home, executor)
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StoreUnavailable(
            f"The key of {location.name} in {location.credentials_file} cannot be used: {why}."
        ) from error


def _forget(tx: Transaction) -> None:
    tx.connection.execute("DELETE FROM fact WHERE name = ?", (FACT,))


def _keep(tx: Transaction, kept: RecordedLocation) -> None:
    tx.connection.execute(
        "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (FACT, json.dumps(asdict(kept)).encode()),
    )


async def _nothing() -> None:
    pass
