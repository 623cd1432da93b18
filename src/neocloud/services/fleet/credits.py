"""Compute credits of a cluster: the time of workers that do not serve because of the platform.

Credits are computed from the events of nodes and the history of the cluster, and are never stored. For each
second, a worker that is credited is one of those that the cluster is charged for then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import Credit, CreditCause, CreditsUnknown, Interval, UsageRecord, intervals
from neocloud.fleet.nodes.outages import Outage
from neocloud.messages.neocloud.fleet.v1 import NodePoolSpec
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import preset
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs
from neocloud.services.slurm.public import NODE_POOL
from neocloud.services.slurm.types import CHARGED_STATES, CLUSTER

LAST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


class PoolMeter:
    """A pool holds nothing; its history is kept as long as bills need it, since they are computed from it."""

    kinds: tuple[str, ...] = (NODE_POOL,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Sequence[UsageRecord]:
        return ()


class FleetCredits:
    """Implements `CreditSource`."""

    def __init__(self, logs: NodeLogs) -> None:
        self._logs = logs

    @classmethod
    def of(cls, dependencies: Dependencies) -> "FleetCredits":
        return cls(dependencies.provided.get(NodeLogs))

    async def __call__(
        self, histories: Sequence[Sequence[HistoryEntry]], start: datetime, end: datetime
    ) -> Sequence[Credit]:
        pools: dict[str, list[Sequence[HistoryEntry]]] = defaultdict(list)
        for history in histories:
            if history[0].kind == NODE_POOL:
                pools[NodePoolSpec.FromString(history[0].spec).cluster_id].append(history)
        found: list[Credit] = []
        for history in histories:
            if history[0].kind == CLUSTER:
                charged = _charged(history, start, end)
                for pool in pools.get(history[0].resource_id, ()) if charged else ():
                    outages = await self._outages(pool[0].resource_id, start.timestamp())
                    found += _credits(charged, pool, outages, end)
        return found

    async def _outages(self, pool_id: str, since: float) -> Sequence[Outage]:
        try:
            return await self._logs.outages(pool_id, since)
        except BrokenLog as error:
            text = f"The events of the nodes cannot be read, so the bill cannot be computed: {error}."
            raise CreditsUnknown(f"{text} Upgrade Neocloud, or restore its database.") from error


def _charged(history: Sequence[HistoryEntry], start: datetime, end: datetime) -> Sequence[Interval]:
    return [each for each in intervals(history, start, end) if each.entry.state in CHARGED_STATES]


def _credits(
    charged: Sequence[Interval], pool: Sequence[HistoryEntry], outages: Sequence[Outage], end: datetime
) -> Iterator[Credit]:
    """Yield what is not charged of the workers of one pool, while it was watched."""
    node_set = NodePoolSpec.FromString(pool[0].spec).node_set
    watched_until = next((entry.at for entry in pool if entry.is_deleted), LAST)
    for interval in charged:
        spec = ClusterSpec.FromString(interval.entry.spec)
        found = next((each for each in spec.node_sets if each.name == node_set), None)
        if found is None or found.HasField("elastic"):
            continue
        names = {f"{node_set}-{index}" for index in range(found.count)}
        units = preset(found.platform, found.preset).skus()
        until = min(interval.end, watched_until.replace(microsecond=0))
        for outage in outages:
            if outage.node in names:
                yield from _credit(replace(interval, end=until), units, outage, end)


def _credit(interval: Interval, units: Mapping[str, int], outage: Outage, end: datetime) -> Iterator[Credit]:
    """Yield a credit for each SKU of one worker for the part of its outage within the interval."""
    begin = max(interval.start, _second(outage.begin))
    finish = min(interval.end, _second(outage.end_by(interval.end.timestamp())))
    if begin >= finish:
        return
    cause = CreditCause(outage.node, outage.cause.value, outage.evidence, outage.reason)
    is_open = outage.end is None and finish == end
    for sku, number in units.items():
        if number:
            record = replace(interval, start=begin, end=finish).record(sku=sku, units=number)
            yield Credit(record, cause, is_open)


def _second(at: float) -> datetime:
    return datetime.fromtimestamp(int(at), UTC)
