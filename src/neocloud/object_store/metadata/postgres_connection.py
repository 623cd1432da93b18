"""Connections to PostgreSQL: opened again after they were lost, bounded in time, and with errors in words.

Clients get no names of machines, databases or users: these are in the log, and in what is raised while a
gateway starts.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from neocloud.object_store.errors import (
    InvalidRequest,
    ObjectStoreError,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)
from neocloud.object_store.metadata.connection import Row

SCHEMA = "neocloud_objects"
CONNECT_SECONDS = 2
READ_SECONDS = 5
"""A read in the thread of the event loop that takes longer is given up, and its connection with it."""
WRITE_SECONDS = 30
"""The same of a statement of the writer, which may wait for the others."""
RETRY_SECONDS = 2
"""So long after a connection failed, reads fail at once: each attempt stops the event loop."""
WAIT_SECONDS = 20
"""A writer waits for the others, and an idle transaction keeps them waiting, no longer."""
_LOG_SECONDS = 10
logger = logging.getLogger(__name__)
Session = psycopg.Connection[Row]
_INDEX = re.compile(r" INDEXED BY \w+")


class Reader(psycopg.Connection[Row]):
    """Gives up a server that does not answer: its thread has other things to do."""

    @property
    def seconds(self) -> float:
        return READ_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.seconds if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise


class Writer(Reader):
    @property
    def seconds(self) -> float:
        return WRITE_SECONDS


class PostgresConnection:
    """One connection, opened when it is needed first, and again after it was lost."""

    def __init__(self, address: str, kind: type[Session] = Reader, **options: str) -> None:
        self._address = address
        self._kind = kind
        self._options = options
        self._database: Session | None = None
        self._retry_at = 0.0

    def open(self) -> bool:
        """Return whether the connection is new. Raises psycopg.Error."""
        if self._database is not None and not self._database.closed:
            return False
        if time.monotonic() < self._retry_at:
            raise psycopg.OperationalError("the connection was lost a moment ago")
        try:
            self._database = connect(self._address, self._kind, **self._options)
        except psycopg.Error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            raise
        return True

    @property
    def database(self) -> Session:
        """Used after `open`."""
        assert self._database is not None
        return self._database

    @property
    def is_lost(self) -> bool:
        return self._database is not None and self._database.closed

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def rollback(self) -> None:
        """End a transaction if there is one."""
        if self._database is not None and not self._database.closed:
            with suppress(psycopg.Error):
                if self._database.info.transaction_status != TransactionStatus.IDLE:
                    self._database.execute("ROLLBACK")

    def execute(self, sql: str, parameters: Sequence[object] = (), /) -> psycopg.Cursor[Row]:
        """Raises psycopg.Error, InvalidRequest."""
        try:
            return self.database.execute(_translated(sql), parameters)
        except psycopg.DataError as error:
            raise _not_storable(error) from error

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]], /) -> psycopg.Cursor[Row]:
        """Raises psycopg.Error, InvalidRequest."""
        cursor = self.database.cursor()
        try:
            cursor.executemany(_translated(sql), parameters)
        except psycopg.DataError as error:
            raise _not_storable(error) from error
        return cursor


class ReadingConnection(PostgresConnection):
    """Reads, in the thread of the event loop unless it is of another kind."""

    def __init__(self, address: str, kind: type[Session] = Reader) -> None:
        super().__init__(address, kind, default_transaction_read_only="on")

    def execute(self, sql: str, parameters: Sequence[object] = (), /) -> psycopg.Cursor[Row]:
        """Raises StoreUnavailable, InvalidRequest."""
        try:
            is_new = self.open()
            try:
                return super().execute(sql, parameters)
            except psycopg.OperationalError:
                if is_new or not self.open():
                    raise  # else the server ended the connection before, for example because it was restarted
                return super().execute(sql, parameters)
        except psycopg.Error as error:
            raise explain_to_clients(error, self._address) from error


class ReadingOnce(ReadingConnection):
    """Reads in a transaction, which a new connection could not continue."""

    def open(self) -> bool:
        if self._database is not None:
            return False
        return super().open()


class Taken(psycopg.OperationalError):
    """Another gateway has the database."""

    def __init__(self) -> None:
        super().__init__("another gateway has the database")


def connect(address: str, kind: type[Session] = psycopg.Connection[Row], **settings: str) -> Session:
    """Connect, so that each statement is a transaction unless one is begun. Raises psycopg.Error,
    StoreUnavailable for what is not an address."""
    try:
        parts = conninfo_to_dict(address)
    except psycopg.Error:  # which quotes the address
        raise StoreUnavailable(
            "The address of PostgreSQL cannot be read. Write postgresql://USER:PASSWORD@HOST/DATABASE."
        ) from None
    own = " ".join(f"-c {name}={value}" for name, value in {"search_path": SCHEMA, **settings}.items())
    options = f"{parts.get('options') or ''} {own}".strip()
    database = kind.connect(
        make_conninfo(
            address,
            options=options,
            application_name="neocloud-objects",
            connect_timeout=CONNECT_SECONDS,
            tcp_user_timeout=WAIT_SECONDS * 1000,
            client_encoding="utf8",
        ),
        autocommit=True,
    )
    database.adapters.register_dumper(int, Int8Dumper)  # one type, one plan
    return database


def named(address: str) -> str:
    """Return which database an address means, without a password."""
    try:
        found = conninfo_to_dict(address)
    except psycopg.Error:
        return "that database"
    host = found.get("host") or "localhost"
    port = f":{found['port']}" if found.get("port") else ""
    return f"postgresql://{host}{port}/{found.get('dbname') or ''}"


def explain_to_clients(error: Exception, address: str) -> ObjectStoreError:
    """Write to the log what happened; return the same without names of machines and users."""
    found = explain(error, address)
    _log.write(str(found))
    for kind, text in _FOR_CLIENTS:
        if isinstance(found, kind):
            return kind(text)
    return found


_FOR_CLIENTS: tuple[tuple[type[ObjectStoreError], str], ...] = (
    (StoreFull, "The disk of the object store is full. Nothing was stored or lost. Free some space."),
    (StoreBusy, "The metadata of the object store do not answer. Nothing was acknowledged. Try again later."),
    (StoreUnavailable, "The metadata of the object store cannot be used. Try again."),
)


class _Log:
    """Each request fails while the database is away; the log says so now and then."""

    _next = 0.0

    def write(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOG_SECONDS
            logger.warning("%s", text)


_log = _Log()


def explain(error: Exception, address: str) -> ObjectStoreError:
    """Return what happened, in words for the operator."""
    where, why = named(address), str(error).strip().split("\n")[0]
    match error:
        case errors.DiskFull():
            return StoreFull(f"The PostgreSQL server of {where} has no space left. Free some space there.")
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{where} is read-only. Give the address of the primary server.")
        case Taken():
            return StoreBusy(
                f"Another object gateway uses {where}. Stop it, or wait until PostgreSQL has noticed that it"
                " is gone."
            )
        case errors.LockNotAvailable():
            return StoreBusy(f"Other writers keep {where} busy. Try again.")
        case errors.InsufficientPrivilege():
            return StoreUnavailable(f"{where}: {why}. Let its user create schemas in the database.")
        case psycopg.OperationalError():
            return StoreBusy(f"PostgreSQL at {where} does not answer ({why}). Is it running?")
        case _:
            return StoreUnavailable(f"PostgreSQL at {where} refused: {why}. Try again.")


def _not_storable(error: psycopg.DataError) -> InvalidRequest:
    return InvalidRequest(f"A value cannot be stored: {str(error).strip().splitlines()[0]}.")


@lru_cache(maxsize=1000)
def _translated(sql: str) -> bytes:
    return _INDEX.sub("", sql).replace("%", "%%").replace("?", "%s").encode()
