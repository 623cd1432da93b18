"""Find: the resources of all kinds that meet the conditions and that the caller may read.

A request for one id, or for names in given parents, reads few rows. Any other one may read all rows that the
caller may read, so it runs beside the other reads and keeps none of them waiting.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

from neocloud.core import contract
from neocloud.core.service import Call, KindTable, Method
from neocloud.core.store.protocol import Transaction
from neocloud.core.store.resource_query import FoundResource, Position, ResourceQuery
from neocloud.messages.neocloud.search.v1 import FindResourcesRequest, FindResourcesResponse
from neocloud.messages.neocloud.search.v1 import FoundResource as FoundMessage
from neocloud.services.iam.types import ReadRights
from neocloud.services.search import rules

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
_NUL = "\0"
_Result = tuple[Sequence[FoundResource], Position | None, Sequence[str]]


async def find(call: Call, request: FindResourcesRequest) -> FindResourcesResponse:
    subject = call.subject
    assert subject is not None, "The method has a permission, so the server has authenticated the caller."
    scope = page_scope(subject.id, request)
    after = _position(contract.page_after(request.page_token, scope))
    size = contract.page_size(request, default=DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    if any(_NUL in text for text in rules.texts_of(request)):
        return FindResourcesResponse()  # no name, id or kind has one, and PostgreSQL refuses it
    kinds = rules.findable(call.dependencies.provided.get(KindTable).values(), request.kinds)
    read_rights = call.dependencies.provided.get(ReadRights)

    def work(tx: Transaction) -> _Result:
        get = cache(tx.get)
        rights = read_rights(tx, subject, rules.permissions_of(kinds))
        places = {kind.message: rules.places_of(kind, rights) for kind in kinds}
        if request.parent_ids:
            places = rules.limited(places, frozenset(request.parent_ids), get)
        unreadable = rules.unreadable(places) if request.kinds else []
        if len(request.ids) == 1:
            row = get(request.ids[0])
            places = rules.limited(places, frozenset({row.parent_id} if row is not None else ()), get)
        query = ResourceQuery(
            areas=rules.areas(places),
            container_kinds=rules.container_kinds(kinds),
            parent_ids=tuple(request.parent_ids),
            ids=tuple(request.ids),
            id_prefix=request.id_prefix,
            name=request.name,
            name_prefix=request.name_prefix,
            labels=dict(request.labels),
        )
        return *tx.find_resources(query, size=size, after=after), unreadable

    store = call.dependencies.store
    read = store.read if _is_short(request, size) else store.read_long
    found, more, unreadable = await read(work)
    return FindResourcesResponse(
        items=[_message(each) for each in found],
        next_page_token=contract.page_token(_NUL.join(more) if more else "", scope),
        unreadable_kinds=unreadable,
    )


def _is_short(request: FindResourcesRequest, size: int) -> bool:
    """Return whether an index leads to the results, and they are not more than a List returns."""
    if len(request.ids) == 1 or (request.parent_ids and request.name):
        return True
    is_range = bool(request.parent_ids and request.name_prefix)
    return is_range and size <= DEFAULT_PAGE_SIZE and not (request.labels or request.id_prefix)


def _message(found: FoundResource) -> FoundMessage:
    return FoundMessage(
        kind=found.kind,
        id=found.id,
        name=found.name,
        parent_id=found.parent_id,
        labels=found.labels,
        state=found.state,
        created_at=found.created_at,
    )


def page_scope(subject_id: str, request: FindResourcesRequest) -> str:
    """Return the list that page tokens of this request belong to: its conditions, and its caller."""
    conditions = FindResourcesRequest()
    conditions.CopyFrom(request)
    conditions.ClearField("page_token")
    conditions.ClearField("page_size")
    content = conditions.SerializeToString(deterministic=True)
    return f"search/{subject_id}/{hashlib.sha256(content).hexdigest()}"


def _position(text: str) -> Position | None:
    """Return the position in a page token. Raise ApiError for a text that is none."""
    if not text:
        return None
    parts = text.split(_NUL)
    if len(parts) != 3:
        raise contract.bad_page_token()
    return parts[0], parts[1], parts[2]


METHODS = (Method("neocloud.search.v1.SearchService/Find", find, permission=""),)
"""Any signed-in caller may search; what it finds depends on its permissions."""
