"""Public keys of one account; switching a key off and on again."""

from dataclasses import replace
from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call
from neocloud.core.store.protocol import OperationRow, Resource, Transaction
from neocloud.services.iam.api.pages import page
from neocloud.services.iam.resources import AUTH_PUBLIC_KEY, AuthPublicKeyStatus, State
from neocloud.services.iam.rules.accounts import KeyState

ListAuthPublicKeyResponse = contract.message("nebius.iam.v1.ListAuthPublicKeyResponse")
SERVICE = "nebius.iam.v1.AuthPublicKeyService"


async def list_by_account(call: Call, request: Any) -> Any:
    account_id = request.account.service_account.id
    owned = await call.dependencies.store.read(lambda tx: tx.owned(account_id))
    found, token = page(
        [row for row in owned if row.kind == AUTH_PUBLIC_KEY],
        request.page_size,
        request.page_token,
        scope=f"keysOf/{account_id}",
        key=lambda row: row.id,
    )
    return ListAuthPublicKeyResponse(
        items=[wire.resource_message(row) for row in found], next_page_token=token
    )


async def activate(call: Call, request: Any) -> Any:
    return await _set_state(call, request, State.ACTIVE, "Activate")


async def deactivate(call: Call, request: Any) -> Any:
    return await _set_state(call, request, State.INACTIVE, "Deactivate")


async def _set_state(call: Call, request: Any, state: State, verb: str) -> Any:
    now = call.dependencies.clock.now()
    operation_id = contract.new_id("operation")

    def change(tx: Transaction) -> OperationRow:
        row = tx.get(request.id)
        if row is None or row.kind != AUTH_PUBLIC_KEY:
            raise contract.not_found("public key", request.id)
        status = AuthPublicKeyStatus.FromString(row.status)
        status.state = KeyState.Value(state)
        tx.update(replace(row, status=status.SerializeToString(), state=state, updated_at=now))
        operation = operations.finish(_operation(call, request, row, operation_id, verb), now)
        tx.insert_operation(operation)
        return operation

    return wire.operation_message(await call.dependencies.store.write(change))


def _operation(call: Call, request: Any, row: Resource, operation_id: str, verb: str) -> OperationRow:
    return OperationRow(
        id=operation_id,
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method=f"{SERVICE}/{verb}",
        description=f"{verb} public key {row.id}",
        created_by=call.subject.id if call.subject else "",
        created_at=call.dependencies.clock.now(),
        resource_version=row.resource_version,
        request=contract.pack(request).SerializeToString(),
    )
