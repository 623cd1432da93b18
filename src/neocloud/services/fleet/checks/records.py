"""Judgements of checks in all pools together: the ones that count for a pool, and what becomes of its checks
with that.

A pool's own judgements count in full. On nodes of other pools those of operators do, too, and of those that
tests made a bounded number for each tenant: who has root on a worker can make a test there say anything.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Page, Resource, Store, Transaction
from neocloud.fleet.control.breakers import Breakers, shadow
from neocloud.fleet.control.judging import BY_TEST
from neocloud.fleet.control.precision import Judgements, Precision
from neocloud.fleet.nodes.events import Judged, RecordElsewhere
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs, PoolLog
from neocloud.services.fleet.types import LIMITS
from neocloud.services.iam.types import tenant_of
from neocloud.services.slurm.public import NODE_POOL

READ_EVERY = 60.0
"""How old what is known of other pools may be."""


@dataclass(frozen=True)
class PoolRecords:
    """The judgements on the nodes of one pool, by check."""

    pool_id: str
    tenant_id: str
    records: Mapping[str, Judgements]


class CheckRecords:
    def __init__(self, store: Store, logs: NodeLogs) -> None:
        self._store, self._logs = store, logs
        self._pools: Sequence[PoolRecords] = ()
        self._read_at = float("-inf")

    @classmethod
    def of(cls, dependencies: Dependencies) -> "CheckRecords":
        return cls(dependencies.store, dependencies.provided.get(NodeLogs))

    async def changes(self, log: PoolLog, now: float) -> list[RecordElsewhere]:
        """Return what a pool has to know of the judgements in others: what takes a check into or out of the
        shadow here, and nothing else, so that its log grows little."""
        if now >= self._read_at + READ_EVERY:
            self._pools, self._read_at = await self.read(), now
        found = elsewhere(self._pools, log.id)
        breakers = log.fleet.breakers
        return [
            RecordElsewhere(now, "", check, found[check].confirmed, found[check].refuted)
            for check in sorted({*found, *breakers.elsewhere})
            if _changes_mode(breakers, check, found[check])
        ]

    async def read(self) -> Sequence[PoolRecords]:
        """Return the judgements of all pools as of now. A pool whose log is broken is left out."""
        pools: list[PoolRecords] = []
        page: Page | None = Page()
        while page is not None:
            rows, after = await self._store.read(lambda tx, page=page: _with_tenants(tx, page))
            for row, tenant in rows:
                with suppress(BrokenLog):
                    log = await self._logs.read(row.id)
                    pools.append(PoolRecords(row.id, tenant, dict(log.fleet.breakers.records)))
            page = Page(after=after) if after else None
        return pools


def elsewhere(pools: Iterable[PoolRecords], pool_id: str) -> Mapping[str, Precision]:
    """Return what counts for a pool of the judgements in others, by check."""
    judged: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for pool in pools:
        if pool.pool_id != pool_id:
            for check, record in pool.records.items():
                judged[check, pool.tenant_id] += record.judged
    found: defaultdict[str, Precision] = defaultdict(Precision)
    for (check, _), several in judged.items():
        found[check] += _bounded(several)
    return found


def _bounded(judged: Sequence[Judged]) -> Precision:
    """Return the judgements of operators on the nodes of one tenant, and the newest of tests."""
    by_tests = sorted((each for each in judged if each.by.startswith(BY_TEST)), key=lambda each: each.at)
    by_people = [each for each in judged if not each.by.startswith(BY_TEST)]
    return Judgements((*by_people, *by_tests[-LIMITS.judged_per_tenant :])).precision


def _changes_mode(breakers: Breakers, check: str, found: Precision) -> bool:
    own = breakers.records.get(check, Judgements()).precision
    is_shadow = bool(shadow(check, own + found, breakers.limits))
    return is_shadow is not bool(breakers.in_shadow(check))


def _with_tenants(tx: Transaction, page: Page) -> tuple[list[tuple[Resource, str]], str]:
    rows, after = tx.list(NODE_POOL, page=page)
    return [(row, tenant_of(row.parent_id, tx.get) or row.parent_id) for row in rows], after
