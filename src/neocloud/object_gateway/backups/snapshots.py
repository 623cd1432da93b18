"""The metadata of a backup at one moment: a copy of the file of SQLite, or a dump of PostgreSQL."""

import hashlib
import json
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from neocloud.object_gateway.backups.location import (
    METADATA,
    POSTGRESQL,
    SNAPSHOTS,
    SQLITE,
    ObjectBackupError,
)
from neocloud.object_store.blobs.location_record import engine_of
from neocloud.object_store.store import KEY_CHECK

NAMED = "SELECT blob FROM content WHERE blob IS NOT NULL"
DUMP, NAMES, FACTS = "metadata.dump", "blobs", "facts.json"
"""The files of a snapshot of PostgreSQL: the dump, the names of its blobs, and what is known of both."""
MOST_FACTS_BYTES = 2**20
_BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class Facts:
    key_check: bytes
    """Sealed with the key of the store."""
    schema_version: int
    elsewhere: str
    """The place in another engine that has the bodies; "": they are in files."""
    blobs: int
    versions: int
    """Versions of objects, without delete markers."""


class Snapshot(Protocol):
    def facts(self) -> Facts:
        """Raises ObjectBackupError."""
        ...

    def names(self) -> Iterator[str]:
        """Yield the names of the blobs. Raises ObjectBackupError."""
        ...

    def check(self) -> None:
        """Raises ObjectBackupError where it is damaged."""
        ...


def snapshot_at(path: Path) -> Snapshot:
    return PostgresSnapshot(path) if path.suffix == POSTGRESQL else SqliteSnapshot(path)


def find_snapshot(target: Path, stamp: str) -> Path:
    """Return where a snapshot is that there is."""
    dump = target / SNAPSHOTS / f"{stamp}{POSTGRESQL}"
    return dump if dump.exists() else dump.with_suffix(SQLITE)


class SqliteSnapshot:
    def __init__(self, path: Path) -> None:
        self._path = path

    def facts(self) -> Facts:
        with self._read() as connection:
            return Facts(
                key_check_of(connection, self._path),
                _number(connection, "PRAGMA user_version"),
                engine_of(connection),
                _number(connection, f"SELECT COUNT(*) FROM ({NAMED})"),  # nosec B608
                _number(connection, "SELECT COUNT(*) FROM version WHERE is_marker = 0"),
            )

    def names(self) -> Iterator[str]:
        with self._read() as connection:
            yield from (name for (name,) in connection.execute(NAMED))

    def check(self) -> None:
        with self._read() as connection:
            whole = connection.execute("PRAGMA quick_check(1)").fetchone()
        if whole != ("ok",):
            raise damaged(self._path)

    @contextmanager
    def _read(self) -> Generator[sqlite3.Connection]:
        try:
            with closing(reading(self._path)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise ObjectBackupError(
                f"{self._path} cannot be read: {error}", "Restore another snapshot"
            ) from None


class PostgresSnapshot:
    """A folder. The dump was made in the same transaction in which the names were read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def dump(self) -> Path:
        return self._path / DUMP

    def write_facts(self, facts: Facts) -> None:
        known = {**vars(facts), "key_check": facts.key_check.hex()}
        digests = {name: _digest(self._path / name) for name in (DUMP, NAMES)}
        (self._path / FACTS).write_text(json.dumps({**known, "sha256": digests}))

    def facts(self) -> Facts:
        known = self._known()
        try:
            return msgspec.convert({**known, "key_check": bytes.fromhex(str(known["key_check"]))}, Facts)
        except (KeyError, ValueError):
            raise damaged(self._path) from None

    def names(self) -> Iterator[str]:
        with (self._path / NAMES).open() as lines:
            yield from (line.rstrip("\n") for line in lines)

    def check(self) -> None:
        found = self._known().get("sha256")
        if found != {name: _digest(self._path / name) for name in (DUMP, NAMES)}:
            raise damaged(self._path)

    def _known(self) -> dict[str, object]:
        try:
            with (self._path / FACTS).open() as file:
                return json.loads(file.read(MOST_FACTS_BYTES))
        except (OSError, ValueError):
            raise damaged(self._path) from None


def damaged(path: Path) -> ObjectBackupError:
    return ObjectBackupError(f"{path} is damaged", "Restore another snapshot")


def key_check_of(connection: sqlite3.Connection, path: Path) -> bytes:
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (KEY_CHECK,)).fetchone()
    if row is None:
        raise ObjectBackupError(f"{path} was never in use", "Start the cloud first")
    return bytes(row[0])


def reading(database: Path) -> sqlite3.Connection:
    """Open the metadata of a store, which may be in use, or of a snapshot, which never changes."""
    fixed = "" if database.name == METADATA else "&immutable=1"
    mode = "rw" if database.name == METADATA else "ro"  # SQLite needs the index of a log beside a used file
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode={mode}{fixed}", uri=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _number(connection: sqlite3.Connection, sql: str) -> int:
    (found,) = connection.execute(sql).fetchone()
    return int(found)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as content:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        raise damaged(path) from None
    return digest.hexdigest()
