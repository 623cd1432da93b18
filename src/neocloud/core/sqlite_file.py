"""SQLite files of one process: lock, open, upgrade, and write in transactions.

The version of a file is its `user_version`: the number of migrations that were applied to it.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from neocloud.core.cleanup import undo_on_error
from neocloud.core.osfiles import HeldLock, Locked, take_lock

_COPY_WAIT_MS = 30_000


class SqliteFileError(Exception):
    """The file cannot be used. The message says why and what to do."""


def lock_file(path: Path) -> HeldLock:
    """Take the lock beside a file for this process. Raises SqliteFileError where another process has it."""
    try:
        return take_lock(path.with_name(path.name + ".lock"))
    except Locked:
        raise SqliteFileError(f"Another process uses {path}. Wait until it has exited, or stop it.") from None


def open_file(path: Path, migrations: Sequence[str], *, timeout_seconds: float) -> sqlite3.Connection:
    """Open or create a file of the newest version. Committed data survive a power failure.

    Each migration is a script of statements that leads from the version of its index to the next. Threads may
    share the connection if they take turns. Raises SqliteFileError where a newer release wrote the file, and
    where it cannot be read or written.
    """
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False)
    try:
        with undo_on_error(connection.close):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _upgrade(connection, path, migrations)
    except sqlite3.Error as error:
        raise SqliteFileError(f"{path} cannot be opened: {error}. Is the disk full?") from error
    return connection


def _upgrade(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Apply all missing migrations, or none: concurrent processes take turns."""
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise SqliteFileError(
                f"{path} was written by a newer release (schema version {version}; this release supports up"
                f" to {len(migrations)}). Start that release, or restore a backup."
            )
        for number, script in enumerate(migrations[version:], version + 1):
            for statement in script.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def copy_file(source: Path, target: Path) -> None:
    """Copy what is committed, in one read transaction, while others write. Deleted rows do not get into the
    copy. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {_COPY_WAIT_MS}")
        connection.execute("VACUUM INTO ?", (str(target),))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Write in one transaction; no other process writes meanwhile, and an exception undoes it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
