"""Serve the operations of every service: OperationService in both its versions, and the lists by parent.

The caller who started an operation may always follow it. Anyone else needs the right to get its resource, or,
once that is gone, to get such resources in its parent.
"""

from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.store.protocol import OperationRow, Page, Transaction
from neocloud.server.access import require
from neocloud.server.request import Request, Runtime
from neocloud.server.validation import check, check_present
from neocloud.server.verbs.read import requested_page

SERVICES = ("nebius.common.v1.OperationService", "nebius.common.v1alpha1.OperationService")


class GetOperation:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: Request) -> Message:
        message = request.message
        check_present(message, "id")
        row = await self._runtime.store.read(lambda tx: tx.get_operation(message.id))
        if row is None:
            raise contract.not_found("operation", message.id)
        is_limited = request.subject is not None and request.subject.scopes is not None
        if row.created_by != request.subject_id or is_limited:
            await self._require(request, row)
        check(message)
        return wire.operation_message(row, request.rpc.output)

    async def _require(self, request: Request, row: OperationRow) -> None:
        kind = self._runtime.kinds.get(row.resource_kind)
        if kind is None:
            raise contract.not_found("operation", row.id)
        resource = await self._runtime.store.read(lambda tx: tx.get(row.resource_id))
        target = row.parent_id if resource is None else row.resource_id
        await _require_as(self._runtime, request, f"{kind.permission}.get", target, ("operation", row.id))


class ListOperations:
    """The operations of one resource."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: Request) -> Message:
        message = request.message
        if not message.resource_id:
            raise contract.bad_field(
                "resource_id", "is required: the id of the resource to list operations of"
            )
        await self._require(request, message.resource_id)
        check(message)
        if getattr(message, "filter", ""):
            raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
        scope = f"operations:{message.resource_id}"
        page = requested_page(message, scope)
        rows, after = await self._runtime.store.read(
            lambda tx: tx.list_operations(resource_id=message.resource_id, page=page)
        )
        return _answer(request, rows, contract.page_token(after, scope))

    async def _require(self, request: Request, resource_id: str) -> None:
        resource = await self._runtime.store.read(lambda tx: tx.get(resource_id))
        if resource is not None:
            kind_name, target = resource.kind, resource_id
        else:
            newest = await self._runtime.store.read(lambda tx: _newest(tx, resource_id))
            if newest is None:
                raise contract.not_found("resource", resource_id)
            kind_name, target = newest.resource_kind, newest.parent_id
        kind = self._runtime.kinds.get(kind_name)
        if kind is None:
            raise contract.not_found("resource", resource_id)
        named = ("resource", resource_id)
        await _require_as(self._runtime, request, f"{kind.permission}.get", target, named)


class ListOperationsByParent:
    """The operations on all resources of one kind in one parent."""

    def __init__(self, runtime: Runtime, kind: str, permission: str) -> None:
        self._runtime = runtime
        self._kind = kind
        self._permission = permission

    async def __call__(self, request: Request) -> Message:
        message = request.message
        check_present(message, "parent_id")
        await require(self._runtime, request, f"{self._permission}.list", message.parent_id)
        check(message)
        scope = f"operations:{self._kind}:{message.parent_id}"
        page = requested_page(message, scope)
        rows, after = await self._runtime.store.read(
            lambda tx: tx.list_operations(parent_id=message.parent_id, kind=self._kind, page=page)
        )
        return _answer(request, rows, contract.page_token(after, scope))


def _newest(tx: Transaction, resource_id: str) -> OperationRow | None:
    rows, _ = tx.list_operations(resource_id=resource_id, page=Page(size=1))
    return rows[0] if rows else None


async def _require_as(
    runtime: Runtime, request: Request, permission: str, target_id: str, named: tuple[str, str]
) -> None:
    """Like require; what must not be known of is missing by the name that the caller gave it, no other."""
    try:
        await require(runtime, request, permission, target_id)
    except contract.ApiError as denial:
        if denial.code is contract.Code.NOT_FOUND:
            raise contract.not_found(*named) from None
        raise


def _answer(request: Request, rows: Any, next_page_token: str) -> Any:
    answer = request.rpc.output(next_page_token=next_page_token)
    operation_class = contract.message(answer.DESCRIPTOR.fields_by_name["operations"].message_type.full_name)
    answer.operations.extend(wire.operation_message(row, operation_class) for row in rows)
    return answer
