"""The metadata in a file of SQLite, which one process writes."""

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from neocloud.core.sqlite_file import SqliteFileError, open_file
from neocloud.object_store.errors import ObjectStoreError, StoreFull, StoreUnavailable
from neocloud.object_store.metadata.schema import MIGRATIONS

_BUSY_SECONDS = 5
_OF_ONE = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
"""Errors of one statement; others are of the file, and concern all that is written together."""


class _ReadingConnection(sqlite3.Connection):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Raises StoreUnavailable."""
        try:
            return super().execute(sql, parameters)
        except sqlite3.Error as error:
            raise _explain(error) from error


class SqliteMetadata:
    is_shared = False
    errors = sqlite3.Error

    def __init__(self, path: Path) -> None:
        """Raises StoreUnavailable."""
        self._path = path
        try:
            self.writing = open_file(path, MIGRATIONS, timeout_seconds=_BUSY_SECONDS)
        except SqliteFileError as error:
            raise StoreUnavailable(str(error)) from error
        self.reading = _reading(path, "ro")
        row = self.writing.execute("SELECT seq FROM sqlite_sequence WHERE name = 'version'").fetchone()
        self._next_seq: int = (row[0] if row else 0) + 1

    def close(self) -> None:
        self.reading.close()
        self.writing.close()

    def open_reading(self) -> sqlite3.Connection:
        try:
            return _reading(self._path, "ro")
        except sqlite3.Error as error:
            raise _explain(error) from error

    def begin(self) -> None:
        if self.writing.in_transaction:  # a group before ended with an error that nobody expected
            self.writing.execute("ROLLBACK")
        self.writing.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.writing.execute("COMMIT")

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            self.writing.execute("ROLLBACK")

    def take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def is_of_one(self, error: Exception) -> bool:
        return isinstance(error, _OF_ONE)

    def explain(self, error: Exception) -> ObjectStoreError:
        return _explain(error)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection for another process than the gateway. It sees the commits and writes nothing.
    Raises StoreUnavailable where the file is of another release."""
    try:
        connection = _reading(path, "rw")  # SQLite needs the file of the log's index beside it
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    connection.execute("PRAGMA query_only = ON")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != len(MIGRATIONS):
        connection.close()
        raise StoreUnavailable(f"{path} was written by another release; use that one.")
    return connection


def _reading(path: Path, mode: str) -> _ReadingConnection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        factory=_ReadingConnection,
    )


def _explain(error: Exception) -> ObjectStoreError:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StoreFull("The disk of the object store is full. Nothing was stored or lost. Free some space.")
    return StoreUnavailable(f"The metadata of the object store cannot be used: {error}. Try again.")
