"""The methods of audit: read the audit log of a tenant.

The database narrows the search to the tenant, the time and the fields that are columns; the filter decides on
the rows that remain. A search that finds little returns what it has and a token to continue with, so no call
takes long.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from neocloud.core import contract
from neocloud.core.service import Call, Dependencies, Method
from neocloud.core.store.audit_query import OBJECT_METHOD, AllOf, AuditEvent, AuditQuery, Is, Not, Test
from neocloud.core.store.protocol import Page, Transaction
from neocloud.messages.google.rpc import Code as RpcCode
from neocloud.messages.nebius.audit.v2 import AuditEvent as Event
from neocloud.messages.nebius.audit.v2 import (
    Authentication,
    AuthenticationType,
    ListAuditEventRequest,
    ListAuditEventResponse,
    Request,
    Resource,
    Status,
)
from neocloud.services.audit.public import LIST_PERMISSION
from neocloud.services.audit.rules import (
    Both,
    Compare,
    FilterError,
    Node,
    access_key_of,
    condition,
    matches,
    parse,
)
from neocloud.services.iam.types import CONTAINER, is_tenant

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
ORDER_HEADER, OLDEST_FIRST = "x-audit-order", "oldest-first"
_MAX_READS = 100
_MIN_ROWS = 1
_DATA_PLANE = contract.enum("nebius.audit.v2.EventType").Value("DATA_PLANE")
_OF_OBJECTS = Is("method", Test.CONTAINS, OBJECT_METHOD)
"""Requests to objects, which are the only events of the data plane."""


@dataclass
class _MatchedEvent:
    events: list[AuditEvent] = field(default_factory=list[AuditEvent])
    after: str = ""


async def list_events(call: Call, request: ListAuditEventRequest) -> ListAuditEventResponse:
    _check(call, request)
    is_ascending = call.headers.get(ORDER_HEADER, "") == OLDEST_FIRST
    is_data = request.event_type == _DATA_PLANE
    scope = f"audit/{request.parent_id}/{request.filter}/{is_ascending}" + ("/data" if is_data else "")
    after = contract.page_after(request.page_token, scope, numbers=2)
    node = _tree(request)
    tenant_id, node = await call.dependencies.store.read(
        lambda tx: _tenant_and_filter(tx, request.parent_id, node)
    )
    query = AuditQuery(
        tenant_id=tenant_id,
        start=_moment(request, "start"),
        end=_moment(request, "end"),
        condition=AllOf((condition(node), _OF_OBJECTS if is_data else Not(_OF_OBJECTS))),
        is_ascending=is_ascending,
    )
    size = min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    found = await _search(call, query, node, size, after)
    return ListAuditEventResponse(
        items=[event_message(event) for event in found.events],
        next_page_token=contract.page_token(found.after, scope),
    )


async def _search(call: Call, query: AuditQuery, node: Node, size: int, after: str) -> _MatchedEvent:
    """Read rows until the page is full. Each read takes as many rows as are missing, so a page never ends in
    the middle of one."""
    found = _MatchedEvent(after=after)
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


@dataclass(frozen=True)
class StoreAuditLog:
    """The AuditLog of public.py."""

    dependencies: Dependencies

    async def lines(self, parent_id: str, start: datetime, end: datetime) -> AsyncIterator[str]:
        store = self.dependencies.store
        days = self.dependencies.settings.audit_days
        if start < self.dependencies.clock.now() - timedelta(days=days):
            raise contract.bad_field("start", f"is more than {days} days ago: events of then are not kept")
        tenant_id, node = await store.read(lambda tx: _tenant_and_filter(tx, parent_id, Both(())))
        # Without requests to objects: writing an export is one, so a bucket would audit its own log for ever.
        wanted = AllOf((condition(node), Not(_OF_OBJECTS)))
        query = AuditQuery(tenant_id=tenant_id, start=start, end=end, condition=wanted, is_ascending=True)
        after = ""
        while True:
            page = Page(MAX_PAGE_SIZE, after)
            rows, after = await store.read_long(lambda tx, p=page: tx.find_audit(query, p))
            for event in rows:
                if matches(node, event):
                    document = contract.to_dict(event_message(event))
                    yield f"{json.dumps(document, ensure_ascii=False)}\n"
            if not after:
                return


METHODS = (
    Method(
        "nebius.audit.v2.AuditEventService/List",
        list_events,
        LIST_PERMISSION,
        target=lambda request: request.parent_id,
    ),
)


Packed = contract.message("google.protobuf.Any")

SPEC_VERSION = "1.0"
"""The version of CloudEvents."""
EVENT_VERSION = "1.0"


def event_message(event: AuditEvent) -> Event:
    message = Event(
        id=event.id,
        source=f"/{event.method.partition('/')[0]}",
        spec_version=SPEC_VERSION,
        type=event.type,
        action=event.action,
        time=event.at,
        event_version=EVENT_VERSION,
    )
    message.service.name = event.service
    if event.status in Status.keys():  # noqa: SIM118  an enum of protobuf, no dictionary
        message.status = Status.Value(event.status)
    _add_subject(message.authentication, event)
    message.authorization.authorized = event.code not in (
        contract.Code.PERMISSION_DENIED,
        contract.Code.UNAUTHENTICATED,
    )
    _add_resource(message.resource, event)
    _add_request(message.request, event)
    message.response.status_code = RpcCode.Value(contract.Code(event.code).name)
    message.response.error_message = event.message
    return message


def _add_subject(authentication: Authentication, event: AuditEvent) -> None:
    authentication.authenticated = bool(event.subject)
    authentication.authentication_type = AuthenticationType.Value("ACCESS_TOKEN")
    if event.method.startswith(OBJECT_METHOD):
        authentication.authentication_type = AuthenticationType.Value("STATIC_KEY")
        authentication.static_key_credential.id = access_key_of(event)
    subject = authentication.subject
    subject.name = event.subject_name
    if event.subject_kind == "user":
        subject.tenant_user_id = event.subject
    elif event.subject:
        subject.service_account_id = event.subject


def _add_resource(resource: Resource, event: AuditEvent) -> None:
    metadata = resource.metadata
    metadata.id, metadata.name, metadata.type = event.resource_id, event.resource_name, event.resource_kind
    for identifier, name, kind in json.loads(event.hierarchy or "[]"):
        resource.hierarchy.add(id=identifier, name=name, type=kind)


def _add_request(request: Request, event: AuditEvent) -> None:
    request.client_ip, request.user_agent = event.source_address, event.user_agent
    request.request_id = request.trace_id = event.request_id
    request.idempotency_id = event.idempotency_key
    parameters = _parameters(event.request)
    if event.impersonator_id:
        parameters["impersonator_id"] = event.impersonator_id
    if parameters:
        request.parameters.update(parameters)


def _parameters(packed: bytes) -> dict[str, Any]:
    """Return the request in the contract's JSON form. Its secrets were removed before it was stored."""
    if not packed:
        return {}
    try:
        return contract.to_dict(contract.unpack(Packed.FromString(packed)))
    except LookupError:  # a message of an earlier release
        return {}
