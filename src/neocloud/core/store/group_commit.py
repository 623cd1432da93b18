# pyright: strict
"""Group commit: one writer per process, which commits all waiting writes together.

A durable commit costs a flush of the disk, some milliseconds; a write itself costs some hundred microseconds.
The writer therefore takes all waiting writes, runs each in a savepoint of its own, and commits once. A write
that raises is rolled back alone. A write returns only after its commit is durable.

All other writers wait for the one write transaction, so `refuse_while_writing` keeps out of it the work
whose cost a tenant decides.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import StoreError, Transaction, Watcher
from neocloud.core.store.transaction import SqlTransaction
from neocloud.core.store.vault import Vault

_LARGEST_GROUP = 256
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


@dataclass(frozen=True)
class _Job:
    work: Work
    future: asyncio.Future[Any]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.future.get_loop()


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error: Exception | None = None


class GroupCommit:
    """Runs writes in a thread of its own; `start` it before `submit`, `stop` it at the end."""

    def __init__(self, database: Database, clock: Clock, vault: Vault, watch: Watcher | None = None) -> None:
        self._database = database
        self._open = partial(SqlTransaction, clock=clock, vault=vault, watch=watch)
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    async def submit(self, work: Work) -> Any:
        if self._thread is None:
            raise StoreError("The store is closed.")
        future = asyncio.get_running_loop().create_future()
        self._waiting.put(_Job(work, future))
        return await future

    async def stop(self) -> None:
        """Return when everything submitted so far is committed or refused."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            await asyncio.to_thread(thread.join)

    def run(self, works: Sequence[Work]) -> list[_Outcome]:
        """Run these as one group in this thread."""
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(works)
            except DBAPIError as error:
                if not self._database.is_conflict(error) or attempt == _ATTEMPTS:
                    return [_Outcome(error=self._database.explain(error))] * len(works)
            time.sleep(pause)
            pause *= 2
        raise AssertionError("The last attempt returns.")

    def _attempt(self, works: Sequence[Work]) -> list[_Outcome]:
        if len(works) == 1:
            return [self._alone(works[0])]
        with self._database.engine.begin() as connection:
            return [self._in_savepoint(connection, work) for work in works]

    def _alone(self, work: Work) -> _Outcome:
        """Run a single write without a savepoint: the whole transaction is rolled back if it raises."""
        try:
            with self._database.engine.begin() as connection:
                return _Outcome(self._run(work, connection))
        except DBAPIError:
            raise
        except Exception as error:  # noqa: BLE001 - passed on to the caller that submitted the work
            return _Outcome(error=error)

    def _run(self, work: Work, connection: Connection) -> Any:
        with writing():
            return work(self._open(connection))

    def _in_savepoint(self, connection: Connection, work: Work) -> _Outcome:
        connection.exec_driver_sql("SAVEPOINT work")
        try:
            result = self._run(work, connection)
            connection.exec_driver_sql("RELEASE SAVEPOINT work")
            return _Outcome(result)
        except DBAPIError as error:
            if self._database.is_conflict(error) or self._database.is_lost(error):
                raise
            outcome = _Outcome(error=self._database.explain(error))
        except Exception as error:  # noqa: BLE001 - passed on to the caller that submitted the work
            outcome = _Outcome(error=error)
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT work")
        connection.exec_driver_sql("RELEASE SAVEPOINT work")
        return outcome

    def _serve(self) -> None:
        is_open = True
        while is_open:
            jobs, is_open = self._next_group()
            try:
                outcomes = self.run([job.work for job in jobs]) if jobs else []
            except Exception as error:  # noqa: BLE001 - the thread must survive, and every caller must get a result
                outcomes = [_Outcome(error=error)] * len(jobs)
            _deliver(jobs, outcomes)

    def _next_group(self) -> tuple[list[_Job], bool]:
        """Wait for one job, then take along all others that wait; False after the last one."""
        jobs: list[_Job] = []
        job = self._waiting.get()
        while job is not None:
            if not job.future.cancelled():
                jobs.append(job)
            if len(jobs) == _LARGEST_GROUP:
                break
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
        return jobs, job is not None


def _deliver(jobs: Sequence[_Job], outcomes: Sequence[_Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, _Outcome]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: Sequence[tuple[_Job, _Outcome]]) -> None:
    for job, outcome in pairs:
        if job.future.cancelled():
            continue
        if outcome.error is not None:
            job.future.set_exception(outcome.error)
        else:
            job.future.set_result(outcome.result)


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
