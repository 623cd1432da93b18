"""The charges of a few resources and models, from the same history, ledger and prices as the bill."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal

from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import HistoryEntry, Transaction
from neocloud.core.usage import CountedUsage, Meters, UsageRecord, UsageSource, kept_from
from neocloud.services.billing.public import Charge, Charges
from neocloud.services.billing.rules.cost import Line, rate
from neocloud.services.billing.rules.price_list import price_list

Record = UsageRecord | CountedUsage


class StoreResourceCharges:
    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    async def __call__(
        self,
        project_ids: Collection[str],
        *,
        kinds: Collection[str],
        resource_ids: Collection[str],
        models: Collection[str],
        start: datetime,
    ) -> Charges:
        provided, store = self._dependencies.provided, self._dependencies.store
        end = self._dependencies.clock.now().replace(microsecond=0)
        kept = await store.read(kept_from)
        first = min(max(start.replace(microsecond=0), kept or start), end)
        histories = await store.read_long(lambda tx: _histories(tx, project_ids, kinds, end))
        records: list[Record] = [
            record
            for history in histories
            for meter in provided.get(Meters)
            if history[0].kind in meter.kinds
            for record in meter(history, first, end)
            if record.resource_id in resource_ids or record.owner_id in resource_ids
        ]
        source = provided.find(UsageSource)
        if source is not None and models:
            counted = await asyncio.to_thread(lambda: list(source(sorted(project_ids), first, end)))
            records += [each for each in counted if each.resource_name in models]
        owners = {each.resource_id: each.owner_id for each in records if isinstance(each, UsageRecord)}
        prices = price_list(provided)
        return Charges(_summed(rate(records, prices), owners), prices.currency, first)


def _histories(
    tx: Transaction, project_ids: Collection[str], kinds: Collection[str], until: datetime
) -> Sequence[Sequence[HistoryEntry]]:
    """Return the history of each resource of these kinds in the projects."""
    found: dict[str, list[HistoryEntry]] = defaultdict(list)
    for project_id in sorted(project_ids):
        for entry in tx.history(kinds=sorted(kinds), parent_id=project_id, until=until):
            found[entry.resource_id].append(entry)
    return list(found.values())


def _summed(lines: Sequence[Line], owners: dict[str, str]) -> Sequence[Charge]:
    """Return one charge for each resource, payer, model and SKU."""
    groups: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        is_counted = line.resource_id not in owners
        name = line.resource_name if is_counted else ""
        resource_id = owners.get(line.resource_id) or line.resource_id
        groups[resource_id, name, line.parent_id, line.sku, line.unit].append(line)
    return [
        Charge(
            *(resource_id, name, project_id, sku),
            quantity=sum((line.quantity for line in found), Decimal(0)),
            unit=unit,
            cost=_total([line.cost for line in found]),
            is_counted=found[0].resource_id not in owners,
        )
        for (resource_id, name, project_id, sku, unit), found in groups.items()
    ]


def _total(costs: Sequence[Decimal | None]) -> Decimal | None:
    known = [each for each in costs if each is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None
