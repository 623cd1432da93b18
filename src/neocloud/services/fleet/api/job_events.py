"""The events of workers in words for their tenants: which checks failed, drains, repairs and starts.

Samples and evidence are for operators; tenants read which check failed.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from neocloud.core.service import Dependencies
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Store, StoreError, Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import BadEvent, decode
from neocloud.fleet.nodes.events import OURS, Event, Status
from neocloud.fleet.nodes.outages import OPERATOR_PREFIX, evidence_of
from neocloud.services.fleet.metrics import MAX_CHECK_CHARS
from neocloud.services.fleet.types import CLUSTER_OWNER, plain
from neocloud.services.slurm.public import NODE_POOL, NodeEvent, NodeHistoryUnknown

PAGE = 1000
MOST_EVENTS = 10_000
"""Events of a job's nodes in its time; the newest are returned."""
LATE = timedelta(hours=1)
"""How much later than others of its time an event may be written."""
AFTERWARDS_SECONDS = 60.0
"""How long after a job's end an event may still tell what ended it."""


class LoggedNodeHistory:
    """Implements `NodeHistory` from the logs of pools."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def of(cls, dependencies: Dependencies) -> "LoggedNodeHistory":
        return cls(dependencies.store)

    async def events(
        self, cluster_id: str, workers: Sequence[str], start: float, end: float
    ) -> Sequence[NodeEvent]:
        until = end + AFTERWARDS_SECONDS
        pools = await self._store.read(
            lambda tx: [row.id for row in tx.owned(cluster_id) if row.kind == NODE_POOL]
        )
        if not pools:
            raise NodeHistoryUnknown("the nodes of this cluster are not watched (use --auto-repair)")
        names, found = frozenset(workers), list[Event]()
        try:
            for pool in pools:
                found += [decode(each.body) for each in await self._logged(pool, names, start, until)]
        except (BadEvent, StoreError) as error:
            raise NodeHistoryUnknown(f"an event of its nodes cannot be read: {error}") from error
        return sorted(told(found), key=lambda each: each.at)

    async def _logged(
        self, pool: str, names: frozenset[str], start: float, until: float
    ) -> Sequence[LogEvent]:
        first, last = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(until, UTC)

        def read(tx: Transaction) -> Sequence[LogEvent]:
            found = deque[LogEvent](maxlen=MOST_EVENTS)
            after = before(tx, pool, first - LATE)
            while page := tx.events(pool, after=after, limit=PAGE):
                found += (each for each in page if first <= each.at <= last and each.subject in names)
                after = page[-1].position
                if page[-1].at > last + LATE:
                    break
            return list(found)

        return await self._store.read_long(read)  # old events are in archives


def before(tx: Transaction, log: str, at: datetime) -> int:
    """Return the number of the last event that is older, where events are in the order of their times; 0 for
    none."""

    def is_later(after: int) -> bool:
        """Return whether the event after this one is not older, or there is none."""
        found = tx.events(log, after=after, limit=1)
        return not found or found[0].at >= at

    most = 1
    while not is_later(most):
        most *= 2
    return bisect_left(range(most), True, key=is_later)


def told(events: Iterable[Event]) -> Iterator[NodeEvent]:
    """Yield what a tenant reads of these events, which are in order."""
    failing = set[tuple[str, str]]()
    for event in events:
        if isinstance(event, e.Verdict):
            key = (event.node, event.check)
            text = _check_text(event, was_failing=key in failing)
            (failing.add if event.status is Status.FAIL else failing.discard)(key)
        else:
            text = _text(event)
        if text:
            yield NodeEvent(event.at, event.node, text)


def _check_text(verdict: e.Verdict, *, was_failing: bool) -> str:
    check = plain(verdict.check, MAX_CHECK_CHARS)
    if verdict.status is Status.FAIL:
        return "" if was_failing else f"the check {check} fails"
    return f"the check {check} passes again" if was_failing and verdict.status is Status.PASS else ""


def _text(event: Event) -> str:
    match event:
        case e.Booted():
            return "it started"
        case e.DrainRequested():
            return f"drained by {_who(event.owner)}"
        case e.DrainReleased():
            return f"released by {_who(event.owner)}"
        case e.Drained():
            return "no job runs on it any more"
        case e.StepStarted():
            return f"repair: {event.action.value}"
        case e.VerificationEnded():
            return "it passed its verification" if event.passed else "it failed its verification"
        case e.Returned():
            return "in service again"
        case e.Moved():
            return f"moved to {event.to.value}"
        case _:
            return ""


def _who(owner: str) -> str:
    if owner == OURS:
        return "the fleet controller"
    if evidence_of(owner):
        return "maintenance"
    if owner == CLUSTER_OWNER:
        return "its cluster"
    return "an operator" if owner.startswith(OPERATOR_PREFIX) else "the tenant"
