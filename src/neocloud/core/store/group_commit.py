"""Group commit: one writer per process, which commits all waiting writes together.

A durable commit costs a flush of the disk, some milliseconds; a write itself costs some hundred microseconds.
The writer therefore takes all waiting writes, runs each in a savepoint of its own, and commits once. A write
that raises is rolled back alone. A write returns only after its commit is durable.

All other writers wait for the one write transaction, so `refuse_while_writing` keeps out of it the work
whose cost a tenant decides.
"""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import StoreError, Transaction, Watcher
from neocloud.core.store.transaction import SqlTransaction
from neocloud.core.store.vault import Vault
from neocloud.core.write_queue import WriteOutcome, WriteQueue

_ATTEMPTS = 12
_FIRST_PAUSE_SECONDS = 0.002

Work = Callable[[Transaction], Any]


class Database(Protocol):
    """The database as the writer sees it: SQLite and PostgreSQL differ in these."""

    engine: Engine

    def explain(self, error: DBAPIError) -> StoreError:
        """Return the error with a message that says what to do next."""
        ...

    def is_conflict(self, error: DBAPIError) -> bool:
        """Return whether the group conflicted with another writer and may be run again."""
        ...

    def is_lost(self, error: DBAPIError) -> bool:
        """Return whether the whole transaction is lost, not only the statement."""
        ...


class GroupCommit:
    """Runs writes in a thread of its own; `start` it before `submit`, `stop` it at the end."""

    def __init__(self, database: Database, clock: Clock, vault: Vault, watch: Watcher | None = None) -> None:
        self._database = database
        self._open = partial(SqlTransaction, clock=clock, vault=vault, watch=watch)
        self._queue: WriteQueue[Work] = WriteQueue(self.run, "store-writer")

    def start(self) -> None:
        self._queue.start()

    async def submit(self, work: Work) -> Any:
        if not self._queue.is_open:
            raise StoreError("The store is closed.")
        return await self._queue.submit(work)

    async def stop(self) -> None:
        """Return when everything submitted so far is committed or refused."""
        await self._queue.stop()

    def run(self, works: Sequence[Work]) -> list[WriteOutcome]:
        """Run these as one group in this thread."""
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(works)
            except DBAPIError as error:
                if not self._database.is_conflict(error) or attempt == _ATTEMPTS:
                    return [WriteOutcome(error=self._database.explain(error))] * len(works)
            time.sleep(pause)
            pause *= 2
        raise AssertionError("The last attempt returns.")

    def _attempt(self, works: Sequence[Work]) -> list[WriteOutcome]:
        if len(works) == 1:
            return [self._alone(works[0])]
        with self._database.engine.begin() as connection:
            return [self._in_savepoint(connection, work) for work in works]

    def _alone(self, work: Work) -> WriteOutcome:
        """Run a single write without a savepoint: the whole transaction is rolled back if it raises."""
        try:
            with self._database.engine.begin() as connection:
                return WriteOutcome(self._run(work, connection))
        except DBAPIError:
            raise
        except Exception as error:  # noqa: BLE001 - passed on to the caller that submitted the work
            return WriteOutcome(error=error)

    def _run(self, work: Work, connection: Connection) -> Any:
        with writing():
            return work(self._open(connection))

    def _in_savepoint(self, connection: Connection, work: Work) -> WriteOutcome:
        connection.exec_driver_sql("SAVEPOINT work")
        try:
            result = self._run(work, connection)
            connection.exec_driver_sql("RELEASE SAVEPOINT work")
            return WriteOutcome(result)
        except DBAPIError as error:
            if self._database.is_conflict(error) or self._database.is_lost(error):
                raise
            outcome = WriteOutcome(error=self._database.explain(error))
        except Exception as error:  # noqa: BLE001 - passed on to the caller that submitted the work
            outcome = WriteOutcome(error=error)
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT work")
        connection.exec_driver_sql("RELEASE SAVEPOINT work")
        return outcome


class _State(threading.local):
    depth = 0


_state = _State()


@contextmanager
def writing() -> Generator[None, None, None]:
    """Mark this thread as being in the write transaction while the context lasts."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


@contextmanager
def reading_own() -> Generator[None, None, None]:
    """Allow the parsing of what the cloud wrote itself, because no tenant decides what it costs."""
    depth, _state.depth = _state.depth, 0
    try:
        yield
    finally:
        _state.depth = depth


def is_writing() -> bool:
    return _state.depth > 0


def refuse_while_writing(what: str) -> None:
    """Raise AssertionError inside a write transaction. For work whose cost a tenant decides."""
    assert not is_writing(), (
        f"{what} inside the write transaction keeps every tenant's writes waiting; do it before"
        " (Rules.request_violations)."
    )
