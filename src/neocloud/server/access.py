"""Permission checks, with refusals in the audit log, and checks that a child belongs to its parent.

The order is the same for every method: permission for the call, permission for the other resources that the
request names, and only then validation. A caller without permission learns nothing else about the resource.
"""

from collections.abc import Collection

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.auditing import record_refusal
from neocloud.server.references import acting_prefixes, acts_as, references
from neocloud.server.request import Request
from neocloud.server.runtime import Runtime


async def require(runtime: Runtime, request: Request, permission: str, target_id: str) -> None:
    """Raises ApiError when the subject does not have the permission on the target."""
    if request.subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    try:
        await runtime.authorizer.authorize(request.subject, permission, target_id)
    except contract.ApiError as denial:
        await record_refusal(runtime, request, denial, target_id)
        raise


async def require_references(
    runtime: Runtime, request: Request, target_id: str, known: Collection[str] = ()
) -> None:
    """Raises ApiError unless the subject may use every resource that the request names. `known` are ids that
    the resource named before: keeping them asks for no new right."""
    wanted = {identifier for _, identifier in references(request.message)} - {target_id, *known}
    for identifier in sorted(wanted):
        row = await runtime.store.read(lambda tx, named=identifier: tx.get(named))
        kind = runtime.kinds.get(row.kind) if row is not None else None
        if kind is None:
            raise contract.not_found("resource", identifier)
        await require(runtime, request, f"{kind.permission}.{kind.reference_verb}", identifier)


async def require_acting(runtime: Runtime, request: Request, account_ids: Collection[str]) -> None:
    """Raise ApiError unless the subject may act as each of these accounts.

    A caller who decides what a resource runs can do everything that the account of the resource can."""
    for identifier in sorted(account_ids):
        row = await runtime.store.read(lambda tx, named=identifier: tx.get(named))
        kind = runtime.kinds.get(row.kind) if row is not None else None
        if kind is not None:  # An account that is gone gives no rights.
            await require(runtime, request, f"{kind.permission}.{kind.reference_verb}", identifier)


async def accounts_of(runtime: Runtime, resource_id: str) -> frozenset[str]:
    """The accounts that the resource acts as; none when there is no such resource."""
    row = await runtime.store.read(lambda tx: tx.get(resource_id))
    if row is None or row.kind not in runtime.kinds or not row.spec:
        return frozenset()
    return acts_as(wire.resource_message(row).spec, acting_prefixes(runtime.kinds.values()))


def refuse_limited(request: Request) -> None:
    """Raise ApiError when the sign-in is limited to some permissions: what any signed-in subject may do to
    itself asks for none."""
    if request.subject is not None and request.subject.scopes is not None:
        raise contract.permission_denied(
            "", request.subject.id, "The key that signs this call is for other services."
        )


def refuse_part(tx: Transaction, row: Resource) -> None:
    """Raise ApiError for a resource that the reconciler of its owner would only put back."""
    owner = tx.get(row.owner_id) if row.owner_id and row.finalizers else None
    if owner is not None and owner.deleted_at is None:
        raise contract.bad_state(
            row.id, f"{row.id} is a part of {owner.id} ({owner.name}). Change that instead."
        )
