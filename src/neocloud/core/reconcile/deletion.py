# pyright: strict
"""Deletion: a resource is marked first; its row is removed once no finalizer is left."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from neocloud.core import operations, wire
from neocloud.core.kind import Kind
from neocloud.core.reconcile.dependents import enqueue_dependents
from neocloud.core.store.protocol import Resource, Transaction

Kinds = Mapping[str, Kind]


def mark_for_deletion(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
    """Mark it for deletion, or delete it immediately if it has no finalizers. May be repeated."""
    if resource.deleted_at is not None:
        return
    if not resource.finalizers:
        delete(tx, kinds, resource, now)
        return
    operations.abort_unfinished(tx, resource.id, now, f"Deleted together with {resource.owner_id}.")
    state = kinds[resource.kind].deleting_state
    status = wire.with_state(resource.kind, resource.status, state)
    tx.update(replace(resource, deleted_at=now, updated_at=now, state=state, status=status))
    enqueue_dependents(tx, kinds, [resource], now)


def delete(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
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
