"""How a resource goes: first it is asked to go, and when nothing holds it any more its row is removed."""

from dataclasses import replace
from datetime import datetime

from neocloud.core import operations, wire
from neocloud.core.store.protocol import Resource, Transaction


def ask(tx: Transaction, resource: Resource, deleting_state: str, now: datetime) -> None:
    """Ask for deletion; a resource without finalizers goes at once. May be repeated."""
    if resource.deleted_at is not None:
        return
    if not resource.finalizers:
        remove(tx, resource, now)
        return
    operations.abort_unfinished(tx, resource.id, now, f"Deleted together with {resource.owner_id}.")
    status = wire.with_state(resource.kind, resource.status, deleting_state)
    tx.update(replace(resource, deleted_at=now, updated_at=now, state=deleting_state, status=status))


def remove(tx: Transaction, resource: Resource, now: datetime) -> None:
    """Remove the row, end its operations, and wake whoever may wait for it to be gone."""
    tx.delete(resource.id)
    operations.finish_removed(tx, resource.id, now)
    for waiting in (resource.owner_id, resource.parent_id):
        if waiting:
            tx.wake(waiting, now)
