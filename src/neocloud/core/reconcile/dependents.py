# pyright: strict
"""What follows from a change or a deletion: dependents to reconcile, owned resources to delete.

The rules of a kind name the dependents of a resource. A dependent without a reconciler stands for its own: a
security rule names its group, the group its network, and the network is enqueued.

A resource to be deleted is marked first; its row is removed once no finalizer is left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from neocloud.core import operations, wire
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


Kinds = Mapping[str, Kind]


def mark_for_deletion(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
    """Mark it for deletion, or delete it immediately if it has no finalizers. May be repeated."""
    if resource.deleted_at is not None:
        return
    if not resource.finalizers:
        delete_row(tx, kinds, resource, now)
        return
    operations.abort_unfinished(tx, resource.id, now, f"Deleted together with {resource.owner_id}.")
    state = kinds[resource.kind].deleting_state
    status = wire.with_state(resource.kind, resource.status, state)
    tx.update(replace(resource, deleted_at=now, updated_at=now, state=state, status=status))
    enqueue_dependents(tx, kinds, [resource], now)


def delete_row(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
    """Remove the row, end its operations, and enqueue the resources that may wait for its removal.

    Owned resources are deleted too; those with a reconciler are only marked.
    """
    for owned in tx.owned(resource.id):
        mark_for_deletion(tx, kinds, owned, now)
    tx.delete(resource.id)
    operations.finish_removed(tx, resource.id, now)
    enqueue_dependents(tx, kinds, [resource], now)
    for waiting in (resource.owner_id, resource.parent_id):
        if waiting:
            tx.enqueue(waiting, now)
