# pyright: strict
"""Write the audit event of a request: the caller, the address, the action or refusal, and the resource.

An event belongs to the tenant of its resource, and a refusal to the tenant of the refused caller. A refusal
on a resource of another tenant names only the id in the request, so it reveals nothing about that tenant.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.request import IDEMPOTENCY_HEADER, SOURCE_HEADER, Request, Runtime

STARTED, DONE, ERROR = "STARTED", "DONE", "ERROR"
REFUSED = "refused"
_PREFIX = "auditevent"
_MAX_TEXT = 512
MAX_REFUSED_REQUEST_BYTES = 4096


def note_change(
    tx: Transaction, request: Request, now: datetime, resource_id: str, *, kind: str = "", parent_id: str = ""
) -> None:
    """A change was made, or begun when its operation goes on. `kind` and `parent_id` of one that is gone."""
    rows = list(_lineage(tx, resource_id)) or list(_lineage(tx, parent_id))
    is_gone = not rows or rows[0].id != resource_id
    event = _event(request, now, contract.Code.OK, resource_id)
    event = replace(_placed(event, rows), parent_id=parent_id)
    if is_gone and kind:
        event = _with_lost(event, resource_id, _last_name(tx, resource_id), _noun(kind))
    unfinished, _ = tx.list_operations(resource_id=resource_id, unfinished=True)
    is_going_on = any(operation.method == request.rpc.path for operation in unfinished)
    tx.audit(replace(event, status=STARTED if is_going_on else DONE))


async def record_refusal(
    runtime: Runtime, request: Request, error: contract.ApiError, resource_id: str
) -> None:
    """Write the refusal once for each request. An unauthenticated caller has no tenant to log it in."""
    if request.subject is None or REFUSED in request.notes:
        return
    now, tenant_id = runtime.now(), request.subject.tenant_id

    def record(tx: Transaction) -> None:
        rows = list(_lineage(tx, resource_id))
        event = replace(_event(request, now, error.code, resource_id, error.message), status=ERROR)
        is_own = bool(rows) and (rows[-1].parent_id or rows[-1].id) == tenant_id
        tx.audit(_placed(event, rows) if is_own else event)

    await runtime.store.write(record)
    request.notes.add(REFUSED)


def named_resource(request: Request) -> str:
    """The id that a request speaks of: of a resource, or of the parent of one that is to be."""
    message = request.message
    metadata = getattr(message, "metadata", None)
    candidates = (getattr(message, "id", ""), getattr(metadata, "id", ""), getattr(metadata, "parent_id", ""))
    return next((name for name in candidates if isinstance(name, str) and name), "")


def _event(
    request: Request, now: datetime, code: contract.Code, resource_id: str, message: str = ""
) -> AuditEvent:
    subject, headers = request.subject, request.headers
    vendor, service, *_ = request.rpc.service.split(".")
    noun = request.rpc.service.rpartition(".")[2].removesuffix("Service").lower()
    action = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", request.rpc.name).lower()
    return AuditEvent(
        id=contract.new_id(_PREFIX),
        at=now,
        subject=request.subject_id,
        method=request.rpc.path,
        parent_id="",
        resource_id=resource_id,
        request_id=request.request_id,
        code=int(code),
        message=message,
        request=_kept_request(request, code),
        tenant_id=subject.tenant_id if subject else "",
        service=service,
        action=action,
        type=f"ai.{vendor}.{service}.{noun}.{action}",
        subject_kind=subject.kind if subject else "",
        subject_name=subject.name if subject else "",
        impersonator_id=subject.impersonator_id if subject else "",
        source_address=headers.get(SOURCE_HEADER, ""),
        user_agent=headers.get("user-agent", "")[:_MAX_TEXT],
        idempotency_key=headers.get(IDEMPOTENCY_HEADER, "")[:_MAX_TEXT],
    )


def _kept_request(request: Request, code: contract.Code) -> bytes:
    """Return what the audit log keeps of a request: of a long one that was refused only its type, so refusals
    cannot fill the disk."""
    kept = request.redacted
    if code is contract.Code.OK or len(kept) <= MAX_REFUSED_REQUEST_BYTES:
        return kept
    return contract.pack(type(request.original)()).SerializeToString()


def _placed(event: AuditEvent, rows: list[Resource]) -> AuditEvent:
    """`rows` from the resource up to its tenant."""
    if not rows:
        return event
    return replace(
        event,
        tenant_id=rows[-1].parent_id or rows[-1].id,
        hierarchy=json.dumps(
            [[row.id, row.name, _noun(row.kind)] for row in reversed(rows)], ensure_ascii=False
        ),
        resource_kind=_noun(rows[0].kind),
        resource_name=rows[0].name,
    )


def _with_lost(event: AuditEvent, resource_id: str, name: str, kind: str) -> AuditEvent:
    hierarchy = [*json.loads(event.hierarchy or "[]"), [resource_id, name, kind]]
    text = json.dumps(hierarchy, ensure_ascii=False)
    return replace(event, hierarchy=text, resource_kind=kind, resource_name=name)


def _last_name(tx: Transaction, resource_id: str) -> str:
    last = tx.last_entry(resource_id)
    return "" if last is None else last.name


def _lineage(tx: Transaction, resource_id: str) -> Iterator[Resource]:
    row = tx.get(resource_id) if resource_id else None
    while row is not None:
        yield row
        row = tx.get(row.parent_id) if row.parent_id else None


def _noun(kind: str) -> str:
    """ "disk" of "nebius.compute.v1.Disk"."""
    return kind.rpartition(".")[2].lower()
