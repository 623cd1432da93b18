"""Keys that service accounts sign in with: those of one account, and switching a key off and on again.

Every kind of key that has a state is switched here.
"""

from dataclasses import replace
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.custom_verbs import done
from neocloud.core.service import Call, Handler, Method
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.iam.v1 import ListAuthPublicKeyByAccountRequest, ListAuthPublicKeyResponse
from neocloud.services.iam.api.pages import page
from neocloud.services.iam.resources import AUTH_PUBLIC_KEY, State
from neocloud.services.iam.rules.keys import set_state, show_expiry

SERVICE = "nebius.iam.v1.AuthPublicKeyService"


async def list_by_account(
    call: Call, request: ListAuthPublicKeyByAccountRequest
) -> ListAuthPublicKeyResponse:
    return await list_keys_of(call, request, AUTH_PUBLIC_KEY, ListAuthPublicKeyResponse)


async def list_keys_of(call: Call, request: Any, kind: str, response: Any) -> Any:
    """The keys of this kind that a service account has, a page at a time."""
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    account_id, now = account_of(request), call.dependencies.clock.now()
    owned = await call.dependencies.store.read(lambda tx: tx.owned(account_id))
    found, token = page(
        [row for row in owned if row.kind == kind],
        request.page_size,
        request.page_token,
        scope=f"{kind}/{account_id}",
        key=lambda row: row.id,
    )
    items = [wire.resource_message(row) for row in found]
    for item in items:
        show_expiry(item, now)
    return response(items=items, next_page_token=token)


def account_of(request: Any) -> str:
    return request.account.service_account.id


def switch(kind: str, state: State, path: str) -> Handler:
    """A handler that puts a key of this kind into the state."""

    async def handle(call: Call, request: Any) -> Any:
        def change(tx: Transaction) -> Any:
            row = tx.get(request.id)
            if row is None or row.kind != kind:
                raise contract.not_found("key", request.id)
            now = call.dependencies.clock.now()
            changed = replace(row, status=set_state(row, state), state=state, updated_at=now)
            tx.update(changed)
            return done(tx, call, request, changed, path=path, title=f"key {row.name or row.id}")

        return await call.dependencies.store.write(change)

    return handle


def switches(kind: str, service: str, permission: str) -> tuple[Method, Method]:
    """Activate and Deactivate of a service whose keys are of this kind."""
    on, off = f"{service}/Activate", f"{service}/Deactivate"
    return (
        Method(on, switch(kind, State.ACTIVE, on), permission, target=by_id, is_change=True),
        Method(off, switch(kind, State.INACTIVE, off), permission, target=by_id, is_change=True),
    )


def by_id(request: Any) -> str:
    return request.id


METHODS = (
    Method(f"{SERVICE}/ListByAccount", list_by_account, "iam.authPublicKeys.list", target=account_of),
    *switches(AUTH_PUBLIC_KEY, SERVICE, "iam.authPublicKeys.update"),
)
