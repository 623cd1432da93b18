"""Folds over logs of events, kept between calls; a start begins from a snapshot and not from the first event.

A snapshot is used if it was made by the same code and can be read; else the log is folded from its start.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from neocloud.core.store.event_log import LogEvent, Snapshot
from neocloud.core.store.protocol import Store, StoreError, Transaction
from neocloud.fleet.control import fold_json
from neocloud.fleet.policy.limits import Limits

LEAST_EVENTS = 1000
"""Fewer new events are folded faster than a snapshot is worth."""
SHARE = 50
"""A snapshot is made once one event in so many is new: what is written stays in proportion to the log."""
Read = Callable[[Callable[[Transaction], Sequence[LogEvent]]], Awaitable[Sequence[LogEvent]]]
logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A fold over the events of one log."""

    id: str
    """The name of the log."""
    position: int
    """Number of the last event that is taken in."""

    def take(self, found: Sequence[LogEvent]) -> None:
        """Take in events; those that are not the next are passed over."""
        ...

    def stored(self) -> Self:
        """Return what a snapshot has: the fold without what it can compute again."""
        ...


Of = TypeVar("Of", bound=Fold)


@dataclass(frozen=True)
class Form(Generic[Of]):
    """One kind of fold, and how a snapshot of it is written."""

    begin: Callable[[str], Of]
    """Return the state of a log before its first event."""
    limits: Callable[[str], Limits]
    version: str
    """Version of the code that folds: with another one, a snapshot cannot be used."""
    classes: tuple[type[Any], ...]
    page: int
    """Events that are read at once."""

    def snapshot_of(self, fold: Of) -> Snapshot:
        """Raises BadFold."""
        body = fold_json.encode(fold.stored(), self.classes)
        return Snapshot(fold.position, self.version, zlib.compress(body, 1))

    def from_snapshot(self, log: str, found: Snapshot) -> Of | None:
        """Return the state in the snapshot; None where it is of other code, or damaged."""
        if found.version != self.version:
            return None
        try:
            fold = fold_json.decode(zlib.decompress(found.body), self.limits(log), self.classes)
        except (zlib.error, fold_json.BadFold) as error:
            logger.warning("The snapshot of %s cannot be read, so all its events are: %s", log, error)
            return None
        is_it = isinstance(fold, self.classes[0]) and (fold.id, fold.position) == (log, found.position)
        return fold if is_it else None


class LogFolds(Generic[Of]):
    def __init__(self, store: Store, form: Form[Of]) -> None:
        self._store, self._form = store, form
        self._known: dict[str, Of] = {}
        self._kept: dict[str, int] = {}
        """The last event of the last snapshot of each log."""

    async def begun(self, log: str) -> Of:
        """Return the state as it was read last, or is in the snapshot."""
        if log in self._known:
            return self._known[log]
        found = await self._store.read(lambda tx: tx.snapshot(log))
        fold = await asyncio.to_thread(self._form.from_snapshot, log, found) if found else None
        if log not in self._known:  # another call may have begun meanwhile
            self._known[log] = fold or self._form.begin(log)
            self._kept[log] = fold.position if fold else 0
        return self._known[log]

    async def read(self, log: str) -> Of:
        """Return the state as of now."""
        fold = await self.begun(log)
        await self._take_all(fold, self._store.read)
        await self._keep(fold)
        return fold

    async def read_whole(self, fold: Of) -> Of:
        """Read all events of a log into a fold of the caller's, also those that are in archives."""
        await self._take_all(fold, self._store.read_long)
        return fold

    def known(self, log: str) -> Of | None:
        return self._known.get(log)

    def forget(self, log: str) -> None:
        self._known.pop(log, None)
        self._kept.pop(log, None)

    async def _take_all(self, fold: Of, read: Read) -> None:
        page = self._form.page
        while True:
            found = await read(lambda tx, after=fold.position: tx.events(fold.id, after=after, limit=page))
            fold.take(found)
            if len(found) < page:
                return
            await asyncio.sleep(0)  # a long log keeps nobody else waiting

    async def _keep(self, fold: Of) -> None:
        """Store a snapshot when enough is new. The events remain, so a failure costs time alone."""
        if fold.position < self._kept.get(fold.id, 0) + max(LEAST_EVENTS, fold.position // SHARE):
            return
        self._kept[fold.id] = fold.position
        try:
            snapshot = self._form.snapshot_of(fold)
            await self._store.write(lambda tx: tx.put_snapshot(fold.id, snapshot))
        except (fold_json.BadFold, StoreError) as error:
            logger.warning("No snapshot of %s was stored: %s", fold.id, error)
