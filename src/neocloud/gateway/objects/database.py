"""`<home>/gateway/files.db`: rows of files and batches.

One connection, which threads take in turns; the control plane's process has another. A transaction is short
and holds no bytes of files.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = 1
SCHEMA = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_project ON files (project_id, number);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX batches_of_project ON batches (project_id, number);
CREATE INDEX open_batches ON batches (project_id) WHERE is_open;
"""


class DatabaseTooNew(Exception):
    """Written by a newer release; the message says what to do."""


class Database:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction() as rows:
            self._upgrade(rows)
        path.chmod(0o600)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For writing: alone in it, here and in other processes; undone when an exception leaves it."""
        with self._turn:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._turn:
            yield self._connection

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def _upgrade(self, rows: sqlite3.Connection) -> None:
        found = rows.execute("PRAGMA user_version").fetchone()[0]
        if found > VERSION:
            raise DatabaseTooNew(
                f"{self._path} was written by a newer release (schema version {found}; this release supports"
                f" up to {VERSION}). Start that release, or restore a backup."
            )
        if found == 0:
            for statement in SCHEMA.split(";"):
                rows.execute(statement)
            rows.execute(f"PRAGMA user_version = {VERSION}")
