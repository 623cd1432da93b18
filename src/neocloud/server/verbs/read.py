"""Get, GetByName and List of any kind."""

from typing import Any

from neocloud.core import contract, wire
from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.server.access import require
from neocloud.server.inbound import Inbound
from neocloud.server.runtime import Runtime
from neocloud.server.shape import KindShape, ShapeError
from neocloud.server.validation import check, check_present, refuse_unserved

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


class Get:
    def __init__(self, runtime: Runtime, shape: KindShape) -> None:
        require_resource_answer(shape, "Get")
        self._runtime = runtime
        self._shape = shape
        self._permission = f"{shape.kind.permission}.get"

    async def __call__(self, inbound: Inbound) -> Any:
        request = inbound.message
        check_present(request, "id")
        await require(self._runtime, inbound, self._permission, request.id)
        check(request)
        refuse_unserved(request, {"id"})

        def find(tx: Transaction) -> Any:
            row = tx.get(request.id)
            if row is None or row.kind != self._shape.kind.message:
                raise contract.not_found(self._shape.word, request.id)
            return as_seen(self._runtime, self._shape.kind, tx, row)

        return await self._runtime.store.read(find)


class GetByName:
    def __init__(self, runtime: Runtime, shape: KindShape) -> None:
        require_resource_answer(shape, "GetByName")
        self._runtime = runtime
        self._shape = shape

    async def __call__(self, inbound: Inbound) -> Any:
        request = inbound.message
        check_present(request, "parent_id", "name")
        kind = self._shape.kind
        await require(self._runtime, inbound, f"{kind.permission}.get", request.parent_id)
        check(request)
        refuse_unserved(request, {"parent_id", "name"})

        def find(tx: Transaction) -> Any:
            row = tx.find(kind.message, request.parent_id, request.name)
            if row is None:
                raise contract.not_found(self._shape.word, request.name)
            return as_seen(self._runtime, kind, tx, row)

        return await self._runtime.store.read(find)


class List:
    def __init__(self, runtime: Runtime, shape: KindShape) -> None:
        self._runtime = runtime
        self._shape = shape
        self._field = shape.list_field()
        if "parent_id" not in shape.rpcs["List"].input.DESCRIPTOR.fields_by_name:
            raise ShapeError(f"{shape.rpcs['List'].path} has no parent_id; give the brick a Method for it.")

    async def __call__(self, inbound: Inbound) -> Any:
        request = inbound.message
        parent_id = request.parent_id
        if not parent_id:
            raise contract.bad_field(
                "parent_id", "is required: the id of the resource whose contents to list"
            )
        kind = self._shape.kind
        await require(self._runtime, inbound, f"{kind.permission}.list", parent_id)
        check(request)
        refuse_unserved(request, {"parent_id", "page_size", "page_token"})
        scope = f"{kind.message}:{parent_id}"
        page = requested_page(request, scope)

        def find(tx: Transaction) -> tuple[list[Any], str]:
            rows, after = tx.list(kind.message, parent_id=parent_id, page=page)
            return [as_seen(self._runtime, kind, tx, row) for row in rows], after

        found, after = await self._runtime.store.read(find)
        answer = inbound.rpc.output()
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


def requested_page(request: Any, scope: str) -> Page:
    """The page a List request asks for; sizes beyond the limit are cut to it."""
    size = getattr(request, "page_size", 0)
    if size < 0:
        raise contract.bad_field(
            "page_size", f"is {size}; must be 1 to {MAX_PAGE_SIZE}, or 0 for the default"
        )
    after = contract.page_after(getattr(request, "page_token", ""), scope, numbers=1)
    return Page(size=min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE), after=after)


def require_resource_answer(shape: KindShape, verb: str) -> None:
    """Raises ShapeError when the contract's method answers with something else than the resource."""
    output = shape.rpcs[verb].output.DESCRIPTOR.full_name
    if output != shape.kind.message:
        raise ShapeError(f"{shape.rpcs[verb].path} answers with {output}; give the brick a Method for it.")
