"""PostgreSQL: the store of several servers.

Writes run serialisable, so a rule that was checked by reading holds when the write commits, whichever server
does it; a conflict runs the group again. Reads run on a snapshot, in threads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import psycopg
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from neocloud.core.cleanup import undo_on_error
from neocloud.core.clock import Clock
from neocloud.core.store.group_commit import GroupCommit
from neocloud.core.store.protocol import StoreError, Transaction, Watcher
from neocloud.core.store.transaction import SqlTransaction
from neocloud.core.store.upgrade import migrate, seal_old_rows
from neocloud.core.store.vault import Vault

Result = TypeVar("Result")

_READERS = 8
_CONNECT_SECONDS = 5
_UPGRADE_LOCK = 0x6E656F636C6F7564
"""Any number, the same in each release: two servers must not upgrade at once."""
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
"""Settings that put written data on the server's disk, whatever the server does for other databases."""


class PostgresDatabase:
    """The engine that writes, and what PostgreSQL's errors mean."""

    def __init__(self, address: str) -> None:
        try:
            url = make_url(address).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError) as error:
            raise StoreError(f"The database address cannot be read: {error}.") from None
        self.where = url.render_as_string(hide_password=True).replace("+psycopg", "", 1)
        self.engine = create_engine(
            url,
            isolation_level="SERIALIZABLE",
            pool_pre_ping=True,
            pool_size=_READERS + 1,
            connect_args={"connect_timeout": _CONNECT_SECONDS},
        )
        event.listen(self.engine, "connect", _make_durable)
        self.reading = self.engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def explain(self, error: DBAPIError) -> StoreError:
        return _explain(error, self.where)

    def is_conflict(self, error: DBAPIError) -> bool:
        return isinstance(error.orig, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected)

    def is_lost(self, error: DBAPIError) -> bool:
        return error.connection_invalidated


class PostgresStore:
    """A `Store` on a PostgreSQL server. Use `open_store`."""

    def __init__(self, address: str, clock: Clock, vault: Vault, watch: Watcher | None = None) -> None:
        self._open = partial(SqlTransaction, clock=clock, vault=vault, watch=watch)
        self._database = PostgresDatabase(address)
        with undo_on_error(self._database.engine.dispose):
            _upgrade(self._database)
            _seal_old_rows(self._database, vault)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._writer = GroupCommit(self._database, clock, vault, watch)
        self._writer.start()

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def read_long(self, work: Callable[[Transaction], Result]) -> Result:
        return await self.read(work)

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        return await self._writer.submit(work)

    async def close(self) -> None:
        await self._writer.stop()
        self._readers.shutdown()
        self._database.engine.dispose()

    def _read(self, work: Callable[[Transaction], Any]) -> Any:
        try:
            with self._database.reading.begin() as connection:
                return work(self._open(connection))
        except DBAPIError as error:
            raise self._database.explain(error) from error


def _make_durable(connection: psycopg.Connection, _: object) -> None:
    connection.execute(_DURABLE)
    connection.commit()


def _upgrade(database: PostgresDatabase) -> None:
    try:
        with database.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
            migrate(connection, f"The database {database.where}")
            connection.commit()
    except DBAPIError as error:
        raise database.explain(error) from error


def _seal_old_rows(database: PostgresDatabase, vault: Vault) -> None:
    def wipe() -> None:
        alone = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with alone.connect() as connection:
            connection.execute(text("VACUUM FULL resources"))
            connection.execute(text("VACUUM FULL history"))

    try:
        seal_old_rows(database.engine, vault, wipe)
    except DBAPIError as error:
        raise database.explain(error) from error


def _explain(error: DBAPIError, where: str) -> StoreError:
    match error.orig:
        case psycopg.errors.DiskFull():
            return StoreError(f"The PostgreSQL server of {where} has no space left. Free some space there.")
        case psycopg.errors.InvalidPassword() | psycopg.errors.InvalidAuthorizationSpecification():
            return StoreError(f"PostgreSQL refused the user or password of {where}. Check the address.")
        case psycopg.errors.InvalidCatalogName():
            return StoreError(f"The database {where} does not exist. Create it: createdb.")
        case psycopg.errors.SerializationFailure() | psycopg.errors.DeadlockDetected():
            return StoreError(f"Too many servers write to {where} at the same time. Try again.")
        case _ if isinstance(error, OperationalError) or error.connection_invalidated:
            return StoreError(f"PostgreSQL at {where} does not answer ({_first_line(error)}). Is it running?")
        case _:
            return StoreError(f"PostgreSQL at {where} refused: {_first_line(error)}.")


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().split("\n")[0]
