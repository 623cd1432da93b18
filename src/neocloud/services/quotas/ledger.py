"""Counts the usage of every quota, in the transaction of the change that causes it, and enforces the limits.

The ledger watches the store, so every way of creating a resource is counted: the API, a reconciler's child, a
service's own insert. Usage counts from the insert until the row is removed: a resource that is being deleted
still counts. Two transactions that race for the last unit write the same counter, so the later one sees the
usage of the earlier one.

The history of a resource counts as well, in bytes, until its entries are removed. Entries that the cloud
itself writes, for a state or a removal, are counted but never refused.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from neocloud.core import contract, wire
from neocloud.core.kind import AnyRules
from neocloud.core.store import HistorySizes, Page, Resource, Store, Transaction, entry_bytes
from neocloud.core.store.protocol import is_noted
from neocloud.messages.nebius.quotas.v1 import QuotaAllowanceSpec
from neocloud.services.iam.types import CONTAINER, is_tenant
from neocloud.services.quotas.rules import ALLOWANCE, Quota, Quotas, amount

logger = logging.getLogger(__name__)
_ROWS_AT_ONCE = 500

HISTORY = "history.size"
"""The quota of the bytes that the versions of resources take, including deleted ones."""
HISTORY_COUNTED = "history.counted"
"""A counter in the scope "": HISTORY_COUNT once the whole history is counted in the present way."""
HISTORY_COUNT = 2
_NO_DEMAND = AnyRules.quota_demand
HISTORY_ENTRY_BYTES = 256
"""The size of an entry besides its spec and labels: ids, name, time, and its entries in three indexes."""

Usage = Mapping[tuple[str, str], int]
"""Units in use, by container and quota."""


class Ledger:
    def __init__(self, rules: Mapping[str, AnyRules], quotas: Quotas) -> None:
        """`rules` of each kind by its message name."""
        self._rules = rules
        self._quotas = quotas

    def watch(self, tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        """Watch a store (a Watcher). Raises ApiError (quota failure) when the change exceeds a limit."""
        if old is not None and new is not None and old.parent_id == new.parent_id:
            self._changed(tx, old, new)
            return
        if old is not None:
            taken = {name: -units for name, units in self._demand(old).items()}
            self._apply(
                tx, old, taken | ({HISTORY: history_bytes(old)} if new is None else {}), may_refuse=False
            )
        if new is not None:
            is_entered = old is None or is_noted(old, new)
            self._apply(tx, new, {**self._demand(new), HISTORY: history_bytes(new) if is_entered else 0})

    def forgotten(self, tx: Transaction, sizes: HistorySizes) -> None:
        """Subtract the removed entries of the history, in the same transaction."""
        for parent_id, (entries, size) in sizes.items():
            for scope in _around(tx, parent_id):
                tx.count(scope.id, HISTORY, -(entries * HISTORY_ENTRY_BYTES + size))

    def _changed(self, tx: Transaction, old: Resource, new: Resource) -> None:
        rules = self._rules.get(new.kind)
        is_wanted = (old.spec, dict(old.labels)) != (new.spec, dict(new.labels)) or (
            rules is not None and rules.is_demand_of_status and old.status != new.status
        )
        change = Counter(self._demand(new) if is_wanted else {})
        change.subtract(self._demand(old) if is_wanted else {})
        change[HISTORY] = history_bytes(new)
        self._apply(tx, new, change, may_refuse=is_wanted)

    async def recount(self, store: Store) -> int:
        """Set every counter to the real usage of the resources, and return how many were wrong.

        Limits are not enforced. Needed when demands change with a release.
        """
        if (await store.read(lambda tx: tx.counters(""))).get(HISTORY_COUNTED) != HISTORY_COUNT:
            await store.write(_count_history)
        wrong = await store.read(self.errors)
        if not wrong:
            return 0

        def correct(tx: Transaction) -> int:
            errors = self.errors(tx)
            for (scope, name), missing in errors.items():
                tx.count(scope, name, missing)
            return len(errors)

        corrected = await store.write(correct)
        logger.warning("counted all resources again: the usage of %d quotas was wrong", corrected)
        return corrected

    def errors(self, tx: Transaction) -> Usage:
        """Return what to add to each counter to correct it; empty when all are right."""
        change = Counter(self._count_all(tx))
        kept = tx.all_counters()
        change.subtract(
            {
                key: units
                for key, units in kept.items()
                if key in change or (key[1] in self._quotas and key[1] != HISTORY)
            }
        )
        return {key: units for key, units in change.items() if units}

    def _count_all(self, tx: Transaction) -> Usage:
        usage: Counter[tuple[str, str]] = Counter()
        scopes: dict[str, Sequence[str]] = {}
        for row in self._rows(tx):
            demand = self._demand(row)
            if demand and row.parent_id not in scopes:
                scopes[row.parent_id] = [scope.id for scope in containers(tx, row)]
            for name, units in demand.items():
                for scope in scopes[row.parent_id]:
                    usage[scope, name] += units
        return usage

    def _rows(self, tx: Transaction) -> Iterator[Resource]:
        for kind, rules in self._rules.items():
            if type(rules).quota_demand is _NO_DEMAND:
                continue
            after, has_more = "", True
            while has_more:
                rows, after = tx.list(kind, page=Page(_ROWS_AT_ONCE, after))
                yield from rows
                has_more = bool(after)

    def _demand(self, row: Resource) -> Mapping[str, int]:
        rules = self._rules.get(row.kind)
        if rules is None or type(rules).quota_demand is _NO_DEMAND:
            return {}
        demand = rules.quota_demand(wire.resource_message(row))
        return {name: units for name, units in demand.items() if units}

    def _apply(
        self, tx: Transaction, row: Resource, change: Mapping[str, int], *, may_refuse: bool = True
    ) -> None:
        changed = {name: units for name, units in change.items() if units}
        if not changed:
            return
        over: list[tuple[str, str, str, str]] = []
        for scope in containers(tx, row):
            for name, units in changed.items():
                usage = tx.count(scope.id, name, units)
                quota = self._quotas.get(name)
                if quota is None or units <= 0 or not may_refuse or row.kind == ALLOWANCE:
                    continue
                limit = limit_of(tx, scope, quota)
                if limit is not None and usage > limit:
                    over.append(_violation(scope, quota, limit, used=usage - units, requested=units))
        if over:
            raise contract.quota_failure(over)


def history_bytes(row: Resource) -> int:
    """Return the size of an entry of the history for the resource as it is."""
    return HISTORY_ENTRY_BYTES + entry_bytes(row)


def _count_history(tx: Transaction) -> None:
    """Count the whole history, once, for a store that was written by an earlier release."""
    change: Counter[str] = Counter()
    for parent_id, (entries, size) in tx.history_sizes().items():
        for scope in _around(tx, parent_id):
            change[scope.id] += entries * HISTORY_ENTRY_BYTES + size
    change.subtract({scope: units for (scope, name), units in tx.all_counters().items() if name == HISTORY})
    for scope, units in change.items():
        tx.count(scope, HISTORY, units)
    tx.count("", HISTORY_COUNTED, HISTORY_COUNT - tx.counters("").get(HISTORY_COUNTED, 0))


def containers(tx: Transaction, row: Resource) -> Iterator[Resource]:
    """Yield the projects and tenants that a resource is in, the nearest first."""
    return _around(tx, row.parent_id)


def _around(tx: Transaction, parent_id: str) -> Iterator[Resource]:
    """Yield them for a resource that has or had this parent. The history names the parent of a deleted
    one."""
    while parent_id:
        above = tx.get(parent_id)
        if above is not None and above.kind == CONTAINER:
            yield above
        known = above or tx.last_entry(parent_id)
        parent_id = "" if known is None else known.parent_id


def limit_of(tx: Transaction, container: Resource, quota: Quota) -> int | None:
    """Return the limit that was set for the container. Otherwise the default for a tenant, None for a
    project."""
    allowance = tx.find(ALLOWANCE, container.id, quota.name)
    if allowance is not None:
        return QuotaAllowanceSpec.FromString(allowance.spec).limit
    return quota.limit if is_tenant(container) else None


def _violation(
    scope: Resource, quota: Quota, limit: int, *, used: int, requested: int
) -> tuple[str, str, str, str]:
    kind = "tenant" if is_tenant(scope) else "project"
    shown = {
        name: amount(value, quota.unit) for name, value in {"used": used, "requested": requested}.items()
    }
    text = (
        f"{quota.name} of {kind} {scope.name or scope.id}: {shown['used']} of {amount(limit, quota.unit)} "
        f"are used, {shown['requested']} more were requested. "
        "Delete resources that are no longer needed, or have the limit raised: "
        f"neo quota set {quota.name} {used + requested} --{kind} {scope.id}"
    )
    return quota.name, str(limit), str(requested), text
