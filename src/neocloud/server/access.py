"""Whether the caller may: permissions, with refusals in the audit log, and parts that belong to a whole."""

from dataclasses import replace

from neocloud.core import contract
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.changes import audit_event
from neocloud.server.inbound import Inbound
from neocloud.server.runtime import Runtime


async def require(runtime: Runtime, inbound: Inbound, permission: str, target_id: str) -> None:
    """Raises ApiError when the subject does not have the permission on the target."""
    if inbound.subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    try:
        await runtime.authorizer.authorize(inbound.subject, permission, target_id)
    except contract.ApiError as denial:
        event = audit_event(inbound, runtime.now(), denial.code, denial.message)
        event = replace(event, resource_id=target_id)
        await runtime.store.write(lambda tx: tx.audit(event))
        raise


def refuse_part(tx: Transaction, row: Resource) -> None:
    """Raise ApiError for a resource that the reconciler of its owner would only put back."""
    owner = tx.get(row.owner_id) if row.owner_id and row.finalizers else None
    if owner is not None and owner.deleted_at is None:
        raise contract.bad_state(
            row.id, f"{row.id} is a part of {owner.id} ({owner.name}). Change that instead."
        )
