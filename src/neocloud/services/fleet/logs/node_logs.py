"""The state of pools, folded from their logs of events and kept between calls.

Reconcilers and the API use the same fold.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core import wire
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Page, Store
from neocloud.fleet.control import fold_json
from neocloud.fleet.control.controller import Fleet
from neocloud.fleet.control.failing import FailingVerdicts
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import BadEvent, decode, encode
from neocloud.fleet.nodes.events import Event, Status
from neocloud.fleet.nodes.incidents import Incidents
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import Outage, Outages
from neocloud.fleet.nodes.repairs import Repairs
from neocloud.messages.neocloud.fleet.v1 import NodePool
from neocloud.services.fleet.logs.fleet_breaker import DrainTimes, is_own_drain
from neocloud.services.fleet.logs.log_folds import Form, LogFolds
from neocloud.services.fleet.types import LIMITS, limits_of
from neocloud.services.slurm.public import NODE_POOL

PAGE = 1000
_SERVICE = Path(__file__).parents[1]
_FILES = ("logs/node_logs.py", "logs/log_folds.py", "logs/fleet_breaker.py", "types.py")
VERSION = fold_json.code_version(*(_SERVICE / name for name in _FILES))
"""Version of the code of this fold."""


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
    repairs: Repairs = field(default_factory=Repairs)
    answers: dict[tuple[str, str], tuple[Status, str]] = field(
        default_factory=dict[tuple[str, str], tuple[Status, str]]
    )
    """The last recorded answer of each check of each node, and its boot."""
    unused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The failing ones of these that were not acted on, as the check was in shadow."""
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

    def stored(self) -> "PoolLog":
        return self

    def _apply(self, event: Event) -> None:
        before = self.fleet.nodes.get(event.node) or NodeState(event.node)
        if isinstance(event, e.Verdict):
            self._take_verdict(event)
        if isinstance(event, e.Judged):
            self.failing.judge(event)
        if event.node:
            self.repairs.observe(event, before)
        if self.fleet.apply(event) and event.node:
            self.incidents.observe(event, before)
            self.outages.observe(event, self.fleet.nodes[event.node], self.incidents)
            if is_own_drain(event) and not before.is_drained_by_us:
                self.drains.add(event.at)

    def _take_verdict(self, event: e.Verdict) -> None:
        key = (event.node, event.check)
        self.answers[key] = (event.status, event.boot)
        in_shadow = bool(self.fleet.breakers.in_shadow(event.check, event.status))
        if in_shadow and event.status is not Status.PASS:
            self.unused.add(key)
        else:
            self.unused.discard(key)
        if event.status is Status.FAIL:
            self.failing.add(event, was_in_shadow=in_shadow)


POOLS = Form(begin=PoolLog.of, limits=limits_of, version=VERSION, classes=(PoolLog, DrainTimes), page=PAGE)


class NodeLogs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._folds = LogFolds(store, POOLS)
        self.deciding = asyncio.Lock()
        """Held from the look at the drains of all pools until those decided by it are in a log."""
        self.closed_until = 0.0
        """Until when there is no room for a drain. Drains of others make it later and not earlier, so pools
        whose drains are held need not read the logs of all pools again and again."""

    async def read(self, pool_id: str, wanted: int | None = None) -> PoolLog:
        """Return the state of a pool as of now. Raises BrokenLog. `wanted`: as its spec says, for those
        who decide."""
        if wanted is not None:
            (await self._folds.begun(pool_id)).fleet.wanted = wanted
        return await self._folds.read(pool_id)

    async def outages(self, pool_id: str, since: float) -> Sequence[Outage]:
        """Return all outages of a pool that did not end before `since`, and maybe others. Those of long ago
        are computed from all events. Raises BrokenLog."""
        log = await self.read(pool_id)
        if since < log.outages.complete_since:
            log = PoolLog.of(pool_id)
            log.outages = Outages(math.inf)
            await self._folds.read_whole(log)
        return log.outages.all

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
                pools.append(await self._folds.begun(row.id))
            page = Page(after=after) if after else None
        return pools

    def forget(self, pool_id: str) -> None:
        self._folds.forget(pool_id)
