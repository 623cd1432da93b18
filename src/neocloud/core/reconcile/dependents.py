"""Who must look because of a resource: those that the rules of its kind name.

An id of a kind without a reconciler passes the wake on to those it names itself: a security rule wakes its
group, the group its network, and the network's reconciler looks.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from neocloud.core.store.protocol import Resource, Transaction


class KindWithDependents(Protocol):
    """What has to be known of a kind. `core.service.Kind` fits."""

    def dependents(self, row: Resource) -> Iterable[str]: ...


def enqueue_dependents(
    tx: Transaction, kinds: Mapping[str, KindWithDependents], rows: Iterable[Resource], now: datetime
) -> bool:
    """To be called in the transaction that makes, changes or removes these rows; with the old and the new
    row of a change, since either may name somebody. True when anybody was woken."""
    waiting = list(rows)
    seen = {row.id for row in waiting}
    has_woken = False
    while waiting:
        row = waiting.pop()
        kind = kinds.get(row.kind)
        for other_id in kind.dependents(row) if kind else ():
            if not other_id or other_id in seen:
                continue
            seen.add(other_id)
            other = tx.get(other_id)
            if other is None:
                continue
            if other.finalizers:
                tx.enqueue(other_id, now)
                has_woken = True
            else:
                waiting.append(other)
    return has_woken
