"""The state of pools, folded from their logs of events and kept between calls.

Reconcilers and the API use the same fold. When a process starts, it begins from the snapshot that another one
has stored, if it was made by the same code and can be read; else from the first event.
"""

import asyncio
import logging
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core import wire
from neocloud.core.store.event_log import LogEvent, Snapshot
from neocloud.core.store.protocol import Page, Store, StoreError
from neocloud.fleet import events as e
from neocloud.fleet import fold_json
from neocloud.fleet.controller import Fleet
from neocloud.fleet.event_json import BadEvent, decode, encode
from neocloud.fleet.events import Event, Status
from neocloud.fleet.failing import FailingVerdicts
from neocloud.fleet.incidents import Incidents
from neocloud.fleet.lifecycle import NodeState
from neocloud.fleet.outages import Outages
from neocloud.messages.neocloud.fleet.v1 import NodePool
from neocloud.services.fleet.fleet_breaker import DrainTimes, is_own_drain
from neocloud.services.fleet.types import LIMITS, limits_of
from neocloud.services.slurm.public import NODE_POOL

PAGE = 1000
LEAST_EVENTS = 1000
"""Fewer new events are folded faster than a snapshot is worth."""
SHARE = 50
"""A snapshot is made once one event in so many is new: what is written stays in proportion to the log."""
_HERE = Path(__file__).parent
_FILES = ("node_logs.py", "fleet_breaker.py", "types.py")
VERSION = fold_json.code_version(*(_HERE / name for name in _FILES))
"""Of the code of this fold."""
logger = logging.getLogger(__name__)


class BrokenLog(Exception):
    """An event of the log cannot be read, so the state of the pool is not known; the message says which."""


def log_event(event: Event) -> LogEvent:
    """Return an event of a node as the log of its pool has it. Raises BadEvent."""
    return LogEvent(event.node, datetime.fromtimestamp(event.at, UTC), encode(event))


@dataclass
class PoolLog:
    """The fold over one log."""

    id: str
    fleet: Fleet
    incidents: Incidents = field(default_factory=Incidents)
    outages: Outages = field(default_factory=Outages)
    answers: dict[tuple[str, str], tuple[Status, str]] = field(default_factory=dict)
    """The last recorded answer of each check of each node, and its boot."""
    unused: set[tuple[str, str]] = field(default_factory=set)
    """Of these, the ones that speak against a node and were not acted on, as the check was in shadow."""
    failing: FailingVerdicts = field(default_factory=FailingVerdicts)
    drains: DrainTimes = field(default_factory=lambda: DrainTimes.of(LIMITS))
    position: int = 0

    @classmethod
    def of(cls, pool_id: str) -> "PoolLog":
        """Return the state of a pool before its first event."""
        return cls(pool_id, Fleet(limits_of(pool_id), 0))

    def take(self, found: Sequence[LogEvent]) -> None:
        for each in found:
            if each.position != self.position + 1:
                continue  # taken in by another call meanwhile
            try:
                event = decode(each.body)
            except BadEvent as error:
                raise BrokenLog(f"event {each.position} of {self.id} cannot be read: {error}") from error
            self._apply(event)
            self.position = each.position

    def _apply(self, event: Event) -> None:
        before = self.fleet.nodes.get(event.node) or NodeState(event.node)
        if isinstance(event, e.Verdict):
            self._take_verdict(event)
        if isinstance(event, e.Judged):
            self.failing.judge(event)
        if self.fleet.apply(event) and event.node:
            self.incidents.observe(event, before)
            self.outages.observe(event, self.fleet.nodes[event.node], self.incidents.by_node)
            if is_own_drain(event) and not before.is_drained_by_us:
                self.drains.add(event.at)

    def _take_verdict(self, event: e.Verdict) -> None:
        key = (event.node, event.check)
        self.answers[key] = (event.status, event.boot)
        in_shadow = bool(self.fleet.breakers.in_shadow(event.check))
        if in_shadow and event.status is not Status.PASS:
            self.unused.add(key)
        else:
            self.unused.discard(key)
        if event.status is Status.FAIL:
            self.failing.add(event, was_in_shadow=in_shadow)


def snapshot_of(log: PoolLog) -> Snapshot:
    """Raises BadFold."""
    body = fold_json.encode(log, (PoolLog, DrainTimes))
    return Snapshot(log.position, VERSION, zlib.compress(body, 1))


def from_snapshot(pool_id: str, found: Snapshot) -> PoolLog | None:
    """Return the state in the snapshot; None where it is of other code, or damaged."""
    if found.version != VERSION:
        return None
    try:
        log = fold_json.decode(zlib.decompress(found.body), limits_of(pool_id), (PoolLog, DrainTimes))
    except (zlib.error, fold_json.BadFold) as error:
        logger.warning("The snapshot of %s cannot be read, so all its events are: %s", pool_id, error)
        return None
    is_it = isinstance(log, PoolLog) and (log.id, log.position) == (pool_id, found.position)
    return log if is_it else None


class NodeLogs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, PoolLog] = {}
        self._kept: dict[str, int] = {}
        """The last event of the last snapshot of each pool."""
        self.deciding = asyncio.Lock()
        """Held from the look at the drains of all pools until those decided by it are in a log."""
        self.closed_until = 0.0
        """Until when there is no room for a drain. Drains of others make it later and not earlier, so pools
        whose drains are held need not read the logs of all pools again and again."""

    async def read(self, pool_id: str, wanted: int | None = None) -> PoolLog:
        """Return the state of a pool as of now. Raises BrokenLog. `wanted`: as its spec says, for those
        who decide."""
        log = self._known.get(pool_id) or await self._begin(pool_id)
        if wanted is not None:
            log.fleet.wanted = wanted
        while True:
            after = log.position
            found = await self._store.read(
                lambda tx, after=after: tx.events(pool_id, after=after, limit=PAGE)
            )
            log.take(found)
            if len(found) < PAGE:
                await self._keep(log)
                return log
            await asyncio.sleep(0)  # a long log keeps nobody else waiting

    async def _begin(self, pool_id: str) -> PoolLog:
        found = await self._store.read(lambda tx: tx.snapshot(pool_id))
        log = await asyncio.to_thread(from_snapshot, pool_id, found) if found else None
        if pool_id not in self._known:  # another call may have begun meanwhile
            self._known[pool_id] = log or PoolLog.of(pool_id)
            self._kept[pool_id] = log.position if log else 0
        return self._known[pool_id]

    async def _keep(self, log: PoolLog) -> None:
        """Store a snapshot when enough is new. The events remain, so a failure costs time alone."""
        if log.position < self._kept.get(log.id, 0) + max(LEAST_EVENTS, log.position // SHARE):
            return
        self._kept[log.id] = log.position
        try:
            snapshot = snapshot_of(log)
            await self._store.write(lambda tx: tx.put_snapshot(log.id, snapshot))
        except (fold_json.BadFold, StoreError) as error:
            logger.warning("No snapshot of %s was stored: %s", log.id, error)

    async def read_all(self) -> Sequence[PoolLog]:
        """Return the state of all pools as of now; one whose log is broken counts as it was read last."""
        pools: list[PoolLog] = []
        page: Page | None = Page()
        while page is not None:
            rows, after = await self._store.read(lambda tx, page=page: tx.list(NODE_POOL, page=page))
            for row in rows:
                wanted = wire.message(row, NodePool).spec.wanted
                with suppress(BrokenLog):
                    await self.read(row.id, wanted)
                pools.append(self._known[row.id])
            page = Page(after=after) if after else None
        return pools

    def forget(self, pool_id: str) -> None:
        self._known.pop(pool_id, None)
        self._kept.pop(pool_id, None)
