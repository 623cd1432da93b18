"""SQLite: the store of one machine.

The file is in WAL mode with full synchronisation: a commit that was answered survives a power cut. Reads run
inline, on a connection of their own, since they take some tens of microseconds; writes go through the one
writer thread. A lock file keeps a second process out: two servers on one state folder would both own every
lease.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from neocloud.core.cleanup import undo_on_error
from neocloud.core.clock import Clock
from neocloud.core.osfiles import HeldLock, Locked, take_lock
from neocloud.core.store.group_commit import GroupCommit
from neocloud.core.store.protocol import StoreError, Transaction, Watcher
from neocloud.core.store.transaction import SqlTransaction
from neocloud.core.store.upgrade import check_revision, migrate, seal_old_rows
from neocloud.core.store.vault import Vault

Result = TypeVar("Result")

_BUSY_MILLISECONDS = 5000
_LOST = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_READONLY,
}


class SqliteDatabase:
    """The engine that writes, and what SQLite's errors mean."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.engine = _engine(path, begin="BEGIN IMMEDIATE")

    def explain(self, error: DBAPIError) -> StoreError:
        return explain(error.orig, self.path)

    def is_conflict(self, error: DBAPIError) -> bool:
        return False

    def is_lost(self, error: DBAPIError) -> bool:
        return _code(error.orig) in _LOST


class SqliteStore:
    """A `Store` in one file. Use `open_store`."""

    def __init__(self, path: Path, clock: Clock, vault: Vault, watch: Watcher | None = None) -> None:
        self._open = partial(SqlTransaction, clock=clock, vault=vault, watch=watch)
        self._lock: HeldLock | None = _lock(path)
        _close_to_others(path)
        self._database = SqliteDatabase(path)
        with undo_on_error(self._unlock), undo_on_error(self._database.engine.dispose):
            check_file(path)
            _upgrade(self._database, str(path))
            _seal_old_rows(self._database, vault)
        self._reading = _engine(path, begin="", is_read_only=True).connect()
        self._reading_long = _engine(path, begin="BEGIN", is_read_only=True)
        self._long_reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._writer = GroupCommit(self._database, clock, vault, watch)
        self._writer.start()

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """SQLAlchemy stays in one transaction for ever: to begin and end its own takes longer than a read."""
        raw: Any = self._reading.connection.dbapi_connection
        try:
            raw.execute("BEGIN")
            try:
                return work(self._open(self._reading))
            finally:
                raw.execute("COMMIT")
        except DBAPIError as error:
            raise self._database.explain(error) from error
        except sqlite3.Error as error:
            raise explain(error, self._database.path) from error

    async def read_long(self, work: Callable[[Transaction], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._long_reader, self._read_apart, work)

    def _read_apart(self, work: Callable[[Transaction], Any]) -> Any:
        try:
            with self._reading_long.begin() as connection:
                return work(self._open(connection))
        except DBAPIError as error:
            raise self._database.explain(error) from error
        except sqlite3.Error as error:
            raise explain(error, self._database.path) from error

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        return await self._writer.submit(work)

    async def close(self) -> None:
        await self._writer.stop()
        await asyncio.to_thread(self._long_reader.shutdown)
        self._reading_long.dispose()
        self._reading.close()
        self._reading.engine.dispose()
        self._database.engine.dispose()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class MemoryStore:
    """A `Store` that is gone with the process and runs everything inline, so that tests are deterministic."""

    def __init__(self, clock: Clock, vault: Vault, watch: Watcher | None = None) -> None:
        self._open = partial(SqlTransaction, clock=clock, vault=vault, watch=watch)
        self._database = SqliteDatabase(None)
        with self._database.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            raw.deserialize(empty_database())
        self._writer = GroupCommit(self._database, clock, vault, watch)

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        try:
            with self._database.engine.begin() as connection:
                return work(self._open(connection))
        except DBAPIError as error:
            raise self._database.explain(error) from error

    async def read_long(self, work: Callable[[Transaction], Result]) -> Result:
        return await self.read(work)

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        (outcome,) = self._writer.run([work])
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    async def close(self) -> None:
        self._database.engine.dispose()


@cache
def empty_database() -> bytes:
    """A database of this release's schema, built once: tests open hundreds."""
    database = SqliteDatabase(None)
    _upgrade(database, "The database in memory")
    with database.engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        content = raw.serialize()
    database.engine.dispose()
    return content


def check_file(path: Path) -> None:
    """Raise StoreError if the file belongs to another program or a newer release; change nothing."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "alembic_version" not in tables:
                if tables:
                    raise StoreError(f"{path} is the database of another program. Give another path.")
                return
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise explain(error, path) from error
    check_revision(row[0] if row else None, str(path))


def explain(error: BaseException | None, path: Path | None) -> StoreError:
    where = path or "in memory"
    match _code(error):
        case sqlite3.SQLITE_FULL:
            text = f"No space is left for the database {where}. Free some space on that disk and try again."
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            text = f"The database {where} is locked by another program. Close what has it open and try again."
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            text = f"{where} is not a database or is damaged ({error}). Restore it from a backup."
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            text = f"The database {where} cannot be opened for writing ({error}). Check who owns it."
        case sqlite3.SQLITE_IOERR:
            text = f"The disk failed under the database {where} ({error}). Check its space and its health."
        case _:
            text = f"The database {where} refused: {error}."
    return StoreError(text)


def _code(error: BaseException | None) -> int | None:
    """The primary result code; SQLite puts details into the upper bytes."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _engine(path: Path | None, *, begin: str, is_read_only: bool = False) -> Engine:
    """`begin` is what a transaction starts with; "" leaves that to the caller."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            str(path) if path else ":memory:",
            isolation_level=None,  # we say BEGIN ourselves
            check_same_thread=False,
            cached_statements=512,
        )
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA query_only = {'ON' if is_read_only else 'OFF'}")
        if path and not is_read_only:
            connection.execute("PRAGMA journal_mode = WAL")
        return connection

    if path:
        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=1, max_overflow=0)
    else:
        engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    def say_begin(connection: Connection) -> None:
        raw: Any = connection.connection.dbapi_connection
        try:  # directly: SQLAlchemy's own way would take half the time of a short read
            raw.execute(begin)
        except sqlite3.Error as error:
            raise DBAPIError(begin, None, error) from error

    if begin:
        event.listen(engine, "begin", say_begin)
    return engine


def _close_to_others(path: Path) -> None:
    """Before SQLite makes or opens the file: its companions, such as the write-ahead log, get its mode."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError as error:
        raise StoreError(
            f"The database {path} cannot be opened for writing ({error.strerror}). Check who owns it."
        ) from error


def _upgrade(database: SqliteDatabase, where: str) -> None:
    try:
        with database.engine.begin() as connection:
            migrate(connection, where)
    except DBAPIError as error:
        raise database.explain(error) from error
    except sqlite3.Error as error:  # while connecting
        raise explain(error, database.path) from error


def _seal_old_rows(database: SqliteDatabase, vault: Vault) -> None:
    try:
        seal_old_rows(database.engine, vault, partial(_wipe, database))
    except DBAPIError as error:
        raise database.explain(error) from error


def _wipe(database: SqliteDatabase) -> None:
    """Rewrite the file without its free pages, and empty the write-ahead log."""
    pooled = database.engine.raw_connection()
    try:
        raw: Any = pooled.dbapi_connection
        raw.execute("VACUUM")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise explain(error, database.path) from error
    finally:
        pooled.close()


def _lock(path: Path) -> HeldLock:
    lock_path = path.with_name(path.name + ".lock")
    try:
        return take_lock(lock_path)
    except OSError as error:
        raise StoreError(
            f"Cannot open {lock_path}: {error.strerror}. Check that the folder exists."
        ) from error
    except Locked as error:
        raise StoreError(
            f"The database {path} is in use by another Neocloud (process {error.holder})."
            " Stop it first: neo down."
        ) from None
