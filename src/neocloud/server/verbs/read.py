"""Get, GetByName and List of any kind."""

from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.server.access import require
from neocloud.server.request import DescriptorError, KindDescriptor, Request, Runtime
from neocloud.server.validation import check, check_present, refuse_unserved

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


class Get:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        require_resource_answer(descriptor, "Get")
        self._runtime = runtime
        self._descriptor = descriptor
        self._permission = f"{descriptor.kind.permission}.get"

    async def __call__(self, request: Request) -> Message:
        message = request.message
        check_present(message, "id")
        await require(self._runtime, request, self._permission, message.id)
        check(message)
        refuse_unserved(message, {"id"})

        def find(tx: Transaction) -> Any:
            row = tx.get(message.id)
            if row is None or row.kind != self._descriptor.kind.message:
                raise contract.not_found(self._descriptor.word, message.id)
            return as_seen(self._runtime, self._descriptor.kind, tx, row)

        return await self._runtime.store.read(find)


class GetByName:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        require_resource_answer(descriptor, "GetByName")
        self._runtime = runtime
        self._descriptor = descriptor

    async def __call__(self, request: Request) -> Message:
        message = request.message
        check_present(message, "parent_id", "name")
        kind = self._descriptor.kind
        await require(self._runtime, request, f"{kind.permission}.get", message.parent_id)
        check(message)
        refuse_unserved(message, {"parent_id", "name"})

        def find(tx: Transaction) -> Any:
            row = tx.find(kind.message, message.parent_id, message.name)
            if row is None:
                raise contract.not_found(self._descriptor.word, message.name)
            return as_seen(self._runtime, kind, tx, row)

        return await self._runtime.store.read(find)


class List:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        self._runtime = runtime
        self._descriptor = descriptor
        self._field = descriptor.list_field()
        if "parent_id" not in descriptor.rpcs["List"].input.DESCRIPTOR.fields_by_name:
            raise DescriptorError(
                f"{descriptor.rpcs['List'].path} has no parent_id; give the service a Method for it."
            )

    async def __call__(self, request: Request) -> Message:
        message = request.message
        parent_id = message.parent_id
        if not parent_id:
            raise contract.bad_field(
                "parent_id", "is required: the id of the resource whose contents to list"
            )
        kind = self._descriptor.kind
        await require(self._runtime, request, f"{kind.permission}.list", parent_id)
        check(message)
        refuse_unserved(message, {"parent_id", "page_size", "page_token"})
        scope = f"{kind.message}:{parent_id}"
        page = requested_page(message, scope)

        def find(tx: Transaction) -> tuple[list[Any], str]:
            rows, after = tx.list(kind.message, parent_id=parent_id, page=page)
            return [as_seen(self._runtime, kind, tx, row) for row in rows], after

        found, after = await self._runtime.store.read(find)
        answer = request.rpc.output()
        getattr(answer, self._field).extend(found)
        if "next_page_token" in answer.DESCRIPTOR.fields_by_name:
            answer.next_page_token = contract.page_token(after, scope)
        return answer


def as_seen(runtime: Runtime, kind: Kind, tx: Transaction, row: Resource) -> Any:
    """The resource as a reader gets it now."""
    resource = wire.resource_message(row)
    if kind.view is not None:
        kind.view(resource, tx, runtime.now())
    if kind.outside_view is not None:
        kind.outside_view(resource, runtime.now(), runtime.dependencies.provided)
    return resource


def requested_page(message: Any, scope: str) -> Page:
    """The page a List request asks for; sizes beyond the limit are cut to it."""
    size = getattr(message, "page_size", 0)
    if size < 0:
        raise contract.bad_field(
            "page_size", f"is {size}; must be 1 to {MAX_PAGE_SIZE}, or 0 for the default"
        )
    after = contract.page_after(getattr(message, "page_token", ""), scope, numbers=1)
    return Page(size=min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE), after=after)


def require_resource_answer(descriptor: KindDescriptor, verb: str) -> None:
    """Raises DescriptorError when the contract's method answers with something else than the resource."""
    output = descriptor.rpcs[verb].output.DESCRIPTOR.full_name
    if output != descriptor.kind.message:
        raise DescriptorError(
            f"{descriptor.rpcs[verb].path} answers with {output}; give the service a Method for it."
        )
