# pyright: strict
"""The dependents of a resource: those that the rules of its kind name, to be reconciled after a change.

A dependent without a reconciler stands for its own dependents: a security rule names its group, the group its
network, and the network is enqueued.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Resource, Transaction


def enqueue_dependents(
    tx: Transaction, kinds: Mapping[str, Kind], rows: Iterable[Resource], now: datetime
) -> bool:
    """Enqueue the dependents of these rows; True when there was one.

    Call it in the transaction that creates, changes or removes the rows, with the old and the new row of a
    change, since either may name dependents.
    """
    waiting = list(rows)
    seen = {row.id for row in waiting}
    has_enqueued = False
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
                has_enqueued = True
            else:
                waiting.append(other)
    return has_enqueued
