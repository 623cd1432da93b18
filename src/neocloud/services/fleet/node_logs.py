"""The state of pools, folded from their logs of events and kept between calls.

Reconcilers and the API use the same fold. A fold is rebuilt from the store whenever a process starts.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from neocloud.core import wire
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Page, Store
from neocloud.fleet import events as e
from neocloud.fleet.controller import Fleet
from neocloud.fleet.event_json import BadEvent, decode
from neocloud.fleet.events import Event, Status
from neocloud.fleet.incidents import Incidents
from neocloud.fleet.lifecycle import NodeState
from neocloud.fleet.outages import Outages
from neocloud.messages.neocloud.fleet.v1 import NodePool
from neocloud.services.fleet.fleet_breaker import DrainTimes, is_own_drain
from neocloud.services.fleet.types import LIMITS, limits_of
from neocloud.services.slurm.public import NODE_POOL

PAGE = 1000


class BrokenLog(Exception):
    """An event of the log cannot be read, so the state of the pool is not known; the message says which."""


@dataclass
class PoolLog:
    """The fold over one log."""

    id: str
    fleet: Fleet = field(init=False)
    incidents: Incidents = field(default_factory=Incidents)
    outages: Outages = field(default_factory=Outages)
    answers: dict[tuple[str, str], tuple[Status, str]] = field(default_factory=dict)
    """The last recorded answer of each check of each node, and its boot."""
    drains: DrainTimes = field(default_factory=lambda: DrainTimes.of(LIMITS))
    position: int = 0

    def __post_init__(self) -> None:
        self.fleet = Fleet(limits_of(self.id), 0)

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
            self.answers[event.node, event.check] = (event.status, event.boot)
        if self.fleet.apply(event):
            self.incidents.observe(event, before)
            self.outages.observe(event, self.fleet.nodes[event.node], self.incidents.by_node)
            if is_own_drain(event) and not before.is_drained_by_us:
                self.drains.add(event.at)


class NodeLogs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, PoolLog] = {}
        self.deciding = asyncio.Lock()
        """Held from the look at the drains of all pools until those decided by it are in a log."""
        self.closed_until = 0.0
        """Until when there is no room for a drain. Drains of others make it later and not earlier, so pools
        whose drains are held need not read the logs of all pools again and again."""

    async def read(self, pool_id: str, wanted: int | None = None) -> PoolLog:
        """Return the state of a pool as of now. Raises BrokenLog. `wanted`: as its spec says, for those
        who decide."""
        log = self._known.setdefault(pool_id, PoolLog(pool_id))
        if wanted is not None:
            log.fleet.wanted = wanted
        while True:
            after = log.position
            found = await self._store.read(
                lambda tx, after=after: tx.events(pool_id, after=after, limit=PAGE)
            )
            log.take(found)
            if len(found) < PAGE:
                return log

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
