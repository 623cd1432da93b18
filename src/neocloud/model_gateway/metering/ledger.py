"""The ledger of tokens: one row for each request, written by this process alone.

A row is inserted when a request starts (a reservation) and completed when it ends. A thread writes all rows
that have accumulated since its last write, so the event loop spends microseconds and one disk write serves
many requests.

After a `kill -9`, starts and ends of the last hundredth of a second (plus one write) may be missing. A
request whose start was written and whose end was not is closed at the next start with the outcome
"interrupted" and its estimated input. Under a budget, the start is on the disk before the request is sent.
Written rows survive a power failure.

While the disk accepts no writes, new requests are refused and unwritten rows wait in memory.
"""

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from neocloud.core import sqlite_file
from neocloud.core.clock import Clock
from neocloud.core.osfiles import HeldLock
from neocloud.model_gateway.metering import ledger_tables
from neocloud.model_gateway.metering.ledger_tables import HOUR_MS, LedgerError, RequestEnd, Reservation

logger = logging.getLogger(__name__)
KEEP_DAYS = 35
"""Rows are kept for so long, then aggregated by hour."""
_GATHER_SECONDS = 0.01
_RETRY_SECONDS = 1.0
_MOST_WAITING = 100_000
_DAY_MS = 24 * HOUR_MS


class LedgerUnavailable(Exception):
    """The ledger cannot be written at the moment."""


class _Item(NamedTuple):
    row: Reservation | RequestEnd | None
    """None: only waits for everything before it."""
    done: "Future[None] | None"


class Ledger:
    """Opened by `open_ledger`. All methods but `close` are called from the thread of the event loop."""

    def __init__(self, connection: sqlite3.Connection, lock: HeldLock, clock: Clock, keep_days: int) -> None:
        self.problem = ""
        """Why the ledger cannot be written; "" when it can."""
        self.spent: Mapping[tuple[str, str], int] = ledger_tables.spent_by_month(connection)
        """Spending in 1e-14 dollars by project and month when the ledger was opened."""
        self._connection = connection
        self._lock = lock
        self._clock = clock
        self._keep_ms = keep_days * _DAY_MS
        self._waiting: deque[_Item] = deque()
        self._unwritten: list[_Item] = []
        self._wake, self._stop = threading.Event(), threading.Event()
        self._will_wake = False
        """The thread will be woken within `_GATHER_SECONDS`."""
        self._aggregated_at = 0
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Return whether more rows wait than the disk has accepted for a long time."""
        return len(self._waiting) > _MOST_WAITING

    def write(self, row: Reservation | RequestEnd) -> None:
        """Write a row with those of the next hundredth of a second. The thread is woken after it, not now:
        it would compete with the request for Python's lock."""
        self._waiting.append(_Item(row, None))
        if not self._will_wake:
            self._will_wake = True
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._wake_thread)

    def _wake_thread(self) -> None:
        self._will_wake = False
        self._wake.set()

    async def write_and_wait(self, row: Reservation) -> None:
        """Return when the row is on the disk. Raises LedgerUnavailable; then it is never written."""
        await self._write_and_wait(row)

    async def flush(self) -> None:
        """Return when everything written so far is on the disk. Raises LedgerUnavailable."""
        await self._write_and_wait(None)

    def close(self) -> None:
        """Write the waiting rows a last time, and close. May be called again."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._connection.close()
        self._lock.release()

    async def _write_and_wait(self, row: Reservation | None) -> None:
        done: Future[None] = Future()
        self._waiting.append(_Item(row, done))
        self._wake.set()
        await asyncio.wrap_future(done)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(_RETRY_SECONDS if self._unwritten else None)
            self._wake.clear()
            self._write_waiting()
            self._aggregate()
        self._write_waiting()
        if self._unwritten:
            logger.error(
                "The ledger is closed with %d unwritten entries: %s", len(self._unwritten), self.problem
            )

    def _write_waiting(self) -> None:
        batch = self._unwritten + [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not batch:
            return
        try:
            with sqlite_file.transaction(self._connection):
                _write(self._connection, batch)
        except sqlite3.Error as error:
            self._keep(batch, error)
            return
        if self.problem:
            logger.warning("The ledger can be written again; nothing was lost.")
        self._unwritten, self.problem = [], ""
        for item in batch:
            if item.done is not None:
                _finish(item.done, None)

    def _keep(self, batch: list[_Item], error: sqlite3.Error) -> None:
        """Keep rows for the next attempt, except reservations with a waiter, which are refused."""
        if not self.problem:
            logger.error("The ledger cannot be written: %s. New requests are refused until it can.", error)
        self.problem = str(error)
        self._unwritten = [_as_refused(item) for item in batch if item.row is not None]
        for item in batch:
            if item.done is not None:
                _finish(item.done, LedgerUnavailable(self.problem))

    def _aggregate(self) -> None:
        """Aggregate one hour of rows at a time, so that writes never wait for long."""
        now = _milliseconds(self._clock)
        if self.problem or abs(now - self._aggregated_at) < HOUR_MS:
            return
        before = (now - self._keep_ms) // HOUR_MS * HOUR_MS
        try:
            with sqlite_file.transaction(self._connection):
                is_more = ledger_tables.aggregate_hour(self._connection, before)
        except sqlite3.Error as error:
            logger.warning("Old rows of the ledger could not be aggregated: %s", error)
            is_more = False
        if is_more:
            self._wake.set()
        else:
            self._aggregated_at = now


def open_ledger(path: Path, clock: Clock, *, keep_days: int = KEEP_DAYS) -> Ledger:
    """Open or create the ledger. Raises LedgerError where another process uses it or it cannot be read."""
    with ExitStack() as undo:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = sqlite_file.lock_file(path)
            undo.callback(lock.release)
            if path.exists():
                ledger_tables.check_file(path)
            connection = sqlite_file.open_file(path, ledger_tables.MIGRATIONS, timeout_seconds=5)
            undo.callback(connection.close)
            with sqlite_file.transaction(connection):
                interrupted = ledger_tables.close_interrupted(connection, _milliseconds(clock))
            ledger = Ledger(connection, lock, clock, keep_days)
        except sqlite_file.SqliteFileError as error:
            raise LedgerError(str(error)) from error
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"The ledger {path} cannot be opened: {error}. Is the disk full?") from error
        undo.pop_all()
    if interrupted:
        logger.warning("%d requests were interrupted; their estimated input is charged.", interrupted)
    return ledger


def _write(connection: sqlite3.Connection, batch: list[_Item]) -> None:
    opened = [item.row for item in batch if isinstance(item.row, Reservation)]
    closed = [item.row for item in batch if isinstance(item.row, RequestEnd)]
    if opened:
        ledger_tables.insert_starts(connection, opened)
    if closed:
        ledger_tables.close_requests(connection, closed)


def _as_refused(item: _Item) -> _Item:
    """Replace a reservation that was refused by its end, in case it was written after all."""
    if item.done is None or not isinstance(item.row, Reservation):
        return _Item(item.row, None)
    return _Item(RequestEnd(item.row.request_id, item.row.started_at, 0, 0, 0, "refused", 0), None)


def _finish(done: "Future[None]", error: LedgerUnavailable | None) -> None:
    with suppress(InvalidStateError):
        if error:
            done.set_exception(error)
        else:
            done.set_result(None)


def _milliseconds(clock: Clock) -> int:
    return int(clock.now().timestamp() * 1000)
