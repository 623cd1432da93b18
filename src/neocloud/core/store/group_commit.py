"""One writer per process: works that wait together are committed together.

A durable commit costs the disk's flush, some milliseconds; a work costs some hundred microseconds. So the
writer takes all works that wait, runs each inside its own savepoint, and commits once. A work that raises is
rolled back alone. Nobody hears of success before the commit is durable.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import StoreError, Transaction, Watcher
from neocloud.core.store.transaction import SqlTransaction
from neocloud.core.store.vault import Vault
from neocloud.core.store.writing import writing

_LARGEST_GROUP = 256
_ATTEMPTS = 12
_FIRST_PAUSE_SECONDS = 0.002

Work = Callable[[Transaction], Any]


class Database(Protocol):
    """What differs between the databases, as far as the writer is concerned."""

    engine: Engine

    def explain(self, error: DBAPIError) -> StoreError:
        """The error in words for people, with what to do next."""
        ...

    def is_conflict(self, error: DBAPIError) -> bool:
        """Another writer was in the way: the whole group may simply be run again."""
        ...

    def is_lost(self, error: DBAPIError) -> bool:
        """The whole transaction is gone, not only the statement."""
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
    """Runs works in a thread of its own; `start` it before `submit`, `stop` it at the end."""

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
        """Returns when everything submitted so far is committed or refused."""
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
        """Without a neighbour to protect, the transaction itself is what is rolled back."""
        try:
            with self._database.engine.begin() as connection:
                return _Outcome(self._run(work, connection))
        except DBAPIError:
            raise
        except Exception as error:  # noqa: BLE001 - belongs to whoever submitted the work, and goes there
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
        except Exception as error:  # noqa: BLE001 - belongs to whoever submitted the work, and goes there
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
            except Exception as error:  # noqa: BLE001 - the thread must live, and nobody may wait for ever
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
