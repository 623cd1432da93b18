"""The method by which the object gateway adds requests of S3 clients to the audit log; it needs its key."""

import json
import re
from collections.abc import Sequence
from datetime import timedelta

from neocloud.core import contract, wire
from neocloud.core.contract import Code
from neocloud.core.service import Call, Method
from neocloud.core.store.audit_query import OBJECT_METHOD, AuditEvent, AuditQuery
from neocloud.core.store.protocol import Page, Transaction
from neocloud.messages.neocloud.storage.v1 import (
    ObjectEvent,
    ReportObjectEventsRequest,
    ReportObjectEventsResponse,
)
from neocloud.services.iam.types import TENANT_USER_ACCOUNT, lineage
from neocloud.services.storage.api.gateway import SERVICE, require_object_gateway
from neocloud.services.storage.types import BUCKET

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CODES = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.ABORTED,
    412: Code.FAILED_PRECONDITION,
    416: Code.OUT_OF_RANGE,
    429: Code.RESOURCE_EXHAUSTED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
}
"""Codes of the API for statuses of S3; others of 400 and more are INTERNAL."""
_MOST_AT_ONCE = 1000
"""Events of one microsecond and tenant, among which one that was reported before is looked for."""


async def report_object_events(call: Call, request: ReportObjectEventsRequest) -> ReportObjectEventsResponse:
    require_object_gateway(call)
    await call.dependencies.store.write(lambda tx: _add(tx, request.events, is_repeated=request.is_repeated))
    return ReportObjectEventsResponse()


def _add(tx: Transaction, events: Sequence[ObjectEvent], *, is_repeated: bool) -> None:
    for event in events:
        found = audit_event(tx, event)
        if found.tenant_id and not (is_repeated and _is_known(tx, found)):
            tx.audit(found)


def _is_known(tx: Transaction, event: AuditEvent) -> bool:
    query = AuditQuery(event.tenant_id, event.at, event.at + timedelta(microseconds=1))
    return any(each.id == event.id for each in tx.find_audit(query, Page(_MOST_AT_ONCE))[0])


def audit_event(tx: Transaction, event: ObjectEvent) -> AuditEvent:
    """Return the event as the audit log of the bucket's tenant has it."""
    places = [(row.id, row.name, wire.noun(row.kind, row.id)) for row in lineage(event.bucket_id, tx.get)]
    if not places:  # the bucket is gone meanwhile
        places = [(event.bucket_id, event.bucket, wire.noun(BUCKET, event.bucket_id))]
        tenant = tx.get(event.tenant_id)
        places += [(tenant.id, tenant.name, wire.noun(tenant.kind, tenant.id))] if tenant else []
    action = _WORD.sub("_", event.operation).lower()
    code = _code(event.status)
    kind, name = _subject(tx, event)
    return AuditEvent(
        id=event.id,
        at=contract.to_datetime(event.at),
        subject=event.subject_id,
        method=f"{OBJECT_METHOD}{event.operation}",
        parent_id=places[1][0] if len(places) > 1 else "",
        resource_id=event.bucket_id,
        request_id=event.request_id,
        code=int(code),
        message=event.error,
        request=contract.pack(event).SerializeToString(),
        tenant_id=event.tenant_id,
        hierarchy=json.dumps(places[::-1], ensure_ascii=False),
        resource_kind=places[0][2],
        resource_name=event.bucket,
        service="storage",
        action=action,
        type=f"ai.nebius.storage.object.{action}",
        status="DONE" if code is Code.OK else "ERROR",
        subject_kind=kind,
        subject_name=name,
        source_address=event.client,
        user_agent=event.user_agent,
    )


def _code(status: int) -> Code:
    return Code.OK if status < 400 else _CODES.get(status, Code.INTERNAL)


def _subject(tx: Transaction, event: ObjectEvent) -> tuple[str, str]:
    """Return kind and name of the account; no name of an account of another tenant."""
    row = tx.get(event.subject_id) if event.subject_id else None
    if row is None:
        return "", ""
    kind = "user" if row.kind == TENANT_USER_ACCOUNT else "service_account"
    is_own = any(each.id == event.tenant_id for each in lineage(row.id, tx.get))
    return kind, row.name if is_own else ""


METHODS = (
    Method(f"{SERVICE}/ReportObjectEvents", report_object_events, None, is_internal=True, is_checked=False),
)
"""Not validated by the server, as the methods in gateway.py."""
