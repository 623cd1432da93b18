"""files.db: the rows of files and batches."""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from neocloud.core import sqlite_file

MIGRATIONS = (
    """
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
""",
    """
ALTER TABLE files ADD COLUMN bucket_id TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN bucket TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN etag TEXT NOT NULL DEFAULT '';
CREATE TABLE unsettled_objects (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    bucket_id TEXT NOT NULL,
    bucket TEXT NOT NULL,
    PRIMARY KEY (id, bucket_id)
);
""",
    """
ALTER TABLE files ADD COLUMN expires_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX expiring_files ON files (expires_at) WHERE expires_at > 0;
""",
)
"""`unsettled_objects` has the files without a row whose object may have been written."""


class Database:
    """The rows of files and batches in `<home>/gateway/files.db`, or others in a file of other `migrations`.

    Threads take turns on one connection; the process of the control plane has another one. Transactions are
    short and hold no bytes of files.
    """

    def __init__(self, path: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn = threading.Lock()
        self._connection = sqlite_file.open_file(path, migrations, timeout_seconds=30)
        self._connection.row_factory = sqlite3.Row
        path.chmod(0o600)

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Write alone, in this and all processes; an exception undoes the transaction."""
        with self._turn, sqlite_file.transaction(self._connection):
            yield self._connection

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        with self._turn:
            yield self._connection

    def close(self) -> None:
        with self._turn:
            self._connection.close()
