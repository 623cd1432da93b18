"""The methods of audit: read the audit log of a tenant.

The database narrows the search to the tenant, the time and the fields that are columns; the filter decides on
the rows that remain. A search that finds little returns what it has and a token to continue with, so no call
takes long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.audit_query import AuditEvent, AuditQuery
from neocloud.core.store.protocol import Page, Transaction
from neocloud.messages.nebius.audit.v2 import ListAuditEventRequest, ListAuditEventResponse
from neocloud.services.audit.events import event_message
from neocloud.services.audit.rules import Both, Compare, FilterError, Node, Test, condition, matches, parse
from neocloud.services.iam.types import CONTAINER, is_tenant

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
ORDER_HEADER, OLDEST_FIRST = "x-audit-order", "oldest-first"
_MAX_READS = 100
_MIN_ROWS = 1
_CONTROL_PLANE = contract.enum("nebius.audit.v2.EventType").Value("CONTROL_PLANE")


@dataclass
class _Found:
    events: list[AuditEvent] = field(default_factory=list)
    after: str = ""


async def list_events(call: Call, request: ListAuditEventRequest) -> ListAuditEventResponse:
    _check(call, request)
    is_ascending = call.headers.get(ORDER_HEADER, "") == OLDEST_FIRST
    scope = f"audit/{request.parent_id}/{request.filter}/{is_ascending}"
    after = contract.page_after(request.page_token, scope, numbers=2)
    if request.event_type not in (0, _CONTROL_PLANE):
        return ListAuditEventResponse()  # events inside machines and files are not recorded
    node = _tree(request)
    tenant_id, node = await call.dependencies.store.read(
        lambda tx: _tenant_and_filter(tx, request.parent_id, node)
    )
    query = AuditQuery(
        tenant_id=tenant_id,
        start=_moment(request, "start"),
        end=_moment(request, "end"),
        condition=condition(node),
        is_ascending=is_ascending,
    )
    size = min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    found = await _search(call, query, node, size, after)
    return ListAuditEventResponse(
        items=[event_message(event) for event in found.events],
        next_page_token=contract.page_token(found.after, scope),
    )


async def _search(call: Call, query: AuditQuery, node: Node, size: int, after: str) -> _Found:
    """Read rows until the page is full. Each read takes as many rows as are missing, so a page never ends in
    the middle of one."""
    found = _Found(after=after)
    for _ in range(_MAX_READS):
        page = Page(max(size - len(found.events), _MIN_ROWS), found.after)
        rows: Sequence[AuditEvent]
        rows, found.after = await call.dependencies.store.read_long(
            lambda tx, p=page: tx.find_audit(query, p)
        )
        found.events += [event for event in rows if matches(node, event)]
        if not found.after or len(found.events) >= size:
            break
    return found


def _check(call: Call, request: ListAuditEventRequest) -> None:
    if not 0 <= request.page_size <= MAX_PAGE_SIZE:
        raise contract.bad_field("page_size", f"must be 1 to {MAX_PAGE_SIZE}, or 0 for the default")
    region = getattr(call.dependencies.settings, "region", "")
    if request.region not in ("", region):
        raise contract.bad_field("region", f"is {request.region!r}; this cloud is {region!r}")


def _tree(request: ListAuditEventRequest) -> Node:
    try:
        return parse(request.filter)
    except FilterError as error:
        raise contract.bad_field("filter", str(error)) from None


def _tenant_and_filter(tx: Transaction, parent_id: str, node: Node) -> tuple[str, Node]:
    """Return the tenant to search, and the filter. For a project, the filter selects among its tenant's
    events."""
    container = tx.get(parent_id)
    if container is None or container.kind != CONTAINER:
        raise contract.bad_field("parent_id", "must be the id of a tenant, or of a project in it")
    if is_tenant(container):
        return container.id, node
    within = Compare("resource.hierarchy.id", Test.EQUALS, container.id)
    return container.parent_id, Both((within, node))


def _moment(request: ListAuditEventRequest, name: Literal["start", "end"]) -> datetime | None:
    return contract.to_datetime(getattr(request, name)) if request.HasField(name) else None


METHODS = (
    Method(
        "nebius.audit.v2.AuditEventService/List",
        list_events,
        "audit.events.list",
        target=lambda request: request.parent_id,
    ),
)
