"""One breaker over all pools: what stops drains while something larger than one cluster may be wrong.

Breakers of a pool count its own drains, so a check that goes wrong everywhere at once would take two nodes of
every cluster and trip none of them. This one counts the drains of all pools. It is computed from their events
alone, as of a moment: nothing is kept that a process could lose, and two processes find the same.

Servers that share a database hold leases of different pools, and may find the same room at the same moment.
So drains are appended together with a claim: a number in the store that each decision raises, from the value
that it was before the room was looked at. A writer that finds another value looks again.

It is open for the cool-down after each drain with which the window held the limit. So once the cool-down has
passed, one drain goes through, and opens it again while the window is as full as before.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from neocloud.core.store.protocol import Mark, StaleVersion, Transaction
from neocloud.fleet.nodes.events import OURS, DrainRequested, Event
from neocloud.fleet.policy.limits import Limits

SMALLEST_LIMIT = 4
"""Drains within the window that are always allowed in the whole fleet: two pools may lose two nodes each."""
MOST_DRAINS = 1000
OPEN = "breaker fleet: open"
_CLAIMS = ("fleet/drains", "decided")
_CLAIM_DAYS = 7
"""How long the number of the last claim is kept: much longer than the time from a look to its claim."""


@dataclass
class DrainTimes:
    """When the controller drained nodes of one pool: as far back as a breaker looks, in order of time."""

    horizon: float
    times: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, limits: Limits) -> "DrainTimes":
        return cls(limits.window + limits.cool_down)

    def add(self, at: float) -> None:
        insort(self.times, at)
        oldest = self.times[-1] - self.horizon
        self.times = [each for each in self.times if each > oldest][-MOST_DRAINS:]


@dataclass(frozen=True)
class DrainAllowance:
    """The number of drains that the whole fleet has room for; with none, the time of the next look."""

    drains: int
    closed_until: float = 0.0


def room(pools: Sequence[DrainTimes], nodes: int, limits: Limits, now: float) -> DrainAllowance:
    """Return the room for drains now, of so many nodes in all pools."""
    times = sorted(min(at, now) for pool in pools for at in pool.times)  # another server's clock may be ahead
    limit = max(SMALLEST_LIMIT, int(limits.cluster_drains * nodes))
    for place in reversed(range(len(times))):
        at = times[place]
        if at <= now - limits.cool_down:
            break
        within = place + 1 - bisect_right(times, at - limits.window)
        if within >= limit:
            return DrainAllowance(0, at + limits.cool_down)
    return DrainAllowance(max(1, limit - len(times) + bisect_right(times, now - limits.window)))


def within_room(decided: Sequence[Event], left: int) -> tuple[list[Event], dict[str, str]]:
    """Return the decisions without the drains that there is no room for, and why each of these is held.

    A spare that was reserved for a drained node stays a spare with it."""
    drains = [event for event in decided if is_own_drain(event)]
    held = {event.node for event in drains[left:]}
    allowed = [
        event
        for event in decided
        if event.node not in held and (getattr(event, "replaces", None) or "") not in held
    ]
    return allowed, dict.fromkeys(sorted(held), OPEN)


def is_own_drain(event: Event) -> bool:
    return isinstance(event, DrainRequested) and event.owner == OURS


def claims(tx: Transaction, now: float) -> int:
    """Return how many decisions with drains there were so far. It is read before the logs of the pools."""
    found = tx.mark(*_CLAIMS, datetime.fromtimestamp(now, UTC))
    return found.amount if found else 0


def claim(tx: Transaction, seen: int, now: float) -> None:
    """Note one more decision. Raises StaleVersion if there was one since `seen` was read."""
    if claims(tx, now) != seen:
        raise StaleVersion("Drains of other pools were decided meanwhile. Look at them, and decide again.")
    until = datetime.fromtimestamp(now, UTC) + timedelta(days=_CLAIM_DAYS)
    tx.put_mark(*_CLAIMS, Mark(seen + 1, until))
