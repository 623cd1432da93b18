"""The recorded location of a store's blobs, in its metadata. Read without the drivers, which take long to
import."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from neocloud.object_store.blobs.s3.location import S3Location

FACT = "blobs"


class MetadataConnection(Protocol):
    """The connection with which metadata are read."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any: ...


@dataclass(frozen=True)
class RecordedLocation:
    """The location of a store that has its blobs in another engine."""

    name: str
    owner: str
    """The owner named by the mark in the location."""
    is_claimed: bool
    endpoint: str
    region: str
    credentials_file: str

    def location(self) -> S3Location:
        bucket, _, prefix = self.name.removeprefix("s3://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        return S3Location(bucket, prefix, self.endpoint, self.region, Path(self.credentials_file))


def recorded_location(connection: MetadataConnection) -> RecordedLocation | None:
    """Return the location in another engine; None where the blobs are files in the store's folder."""
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (FACT,)).fetchone()
    return None if row is None else RecordedLocation(**json.loads(row[0]))


def engine_of(connection: MetadataConnection) -> str:
    """Return the name of the location in another engine that has the blobs; "" where they are in files."""
    kept = recorded_location(connection)
    return kept.name if kept is not None else ""


def problem_with(home: Path, location: S3Location | None) -> str:
    """Return why the store in a folder cannot be opened with this location; "": no reason is known."""
    path = home / "meta.db"
    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return problem_of(connection, recorded_location(connection), location)
    except sqlite3.Error:
        return ""  # the gateway says what is wrong with the file


def problem_of(
    connection: MetadataConnection, kept: RecordedLocation | None, location: S3Location | None
) -> str:
    """Return why this location cannot be used in place of the recorded one; "" where it can."""
    before, now = kept.name if kept else "", location.name if location else ""
    if before == now:
        return ""
    (is_used,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM content WHERE blob IS NOT NULL) OR EXISTS (SELECT 1 FROM garbage)"
    ).fetchone()
    if not is_used:
        return ""
    where, wanted = before or "the folder of the object store", now or "that folder"
    again = f"set object-blobs {quote(before)}" if before else "unset object-blobs"
    return (
        f"The bodies of the objects are in {where}, not in {wanted}, and are not moved. Use them"
        f" again: `neo config {again}`; or copy the objects to another cloud with a transfer."
    )
