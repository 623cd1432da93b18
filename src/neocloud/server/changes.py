"""Write what a request leaves in the store: a change, with its operation, audit event and idempotency
key, in one transaction; or the audit event of a refusal.

A change that was done before under the same idempotency key is answered as it was then, whatever has happened
since. The body of the request is part of the key's meaning: the same key with another body is refused.

An audit event names the caller, the address, the action or refusal, and the resource. It belongs to the
tenant of its resource, and a refusal to the tenant of the refused caller. A refusal on a resource of
another tenant names only the id in the request, so it reveals nothing about that tenant.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from google.protobuf.message import Message

from neocloud.core import contract, operations, wire
from neocloud.core.kind import Kind
from neocloud.core.service import NewOperation
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import IdempotencyKey, OperationRow, Resource, Transaction
from neocloud.server.request import IDEMPOTENCY_HEADER, RESET_MASK_HEADER, SOURCE_HEADER, Request, Runtime

_OPERATION_PREFIX = "operation"
_MAX_KEY_LENGTH = 256
STARTED, DONE, ERROR = "STARTED", "DONE", "ERROR"
REFUSED = "refused"
_EVENT_PREFIX = "auditevent"
_MAX_TEXT = 512
MAX_REFUSED_REQUEST_BYTES = 4096


@dataclass(frozen=True)
class Change:
    """A change that a verb has made, of which the operation is to be recorded."""

    operation: OperationRow
    is_recorded: bool = False
    """The operation is in the store already, because an earlier request asked for the same."""


@dataclass(frozen=True)
class Answered:
    """A change whose work made the answer itself, and the resource that it concerns."""

    answer: Message
    resource_id: str
    removed: Resource | None = None
    """The row of that resource, if the change has removed it."""


async def commit(
    runtime: Runtime, request: Request, work: Callable[[Transaction], Change | Answered]
) -> Message:
    """Run `work` and record it durably. Returns its answer, or the Operation message of a Change."""

    def attempt(tx: Transaction) -> Message:
        replayed = recall(tx, request)
        if replayed is not None:
            return replayed
        change = work(tx)
        if isinstance(change, Answered):
            record(tx, request, change, runtime.now())
            return change.answer
        return _record_operation(tx, request, change, runtime.now())

    answer = await runtime.store.write(attempt)
    runtime.notify()
    return answer


def record(tx: Transaction, request: Request, done: Answered, now: datetime) -> None:
    """Write the audit event, and remember the answer. An answer that holds a secret is never kept."""
    row = done.removed
    kind, parent_id = (row.kind, row.parent_id) if row is not None else ("", "")
    note_change(tx, request, now, done.resource_id, kind=kind, parent_id=parent_id)
    if contract.redact(done.answer) == done.answer:
        remember(tx, request, done.answer, now)


def _record_operation(tx: Transaction, request: Request, change: Change, now: datetime) -> Message:
    row = change.operation
    if not change.is_recorded:
        tx.insert_operation(row)
    answer = wire.operation_message(row, request.rpc.output)
    note_change(tx, request, now, row.resource_id, kind=row.resource_kind, parent_id=row.parent_id)
    remember(tx, request, answer, now)
    return answer


def new_operation(request: Request, row: Resource, now: datetime, title: str) -> OperationRow:
    """Return a pending operation of this request on this resource."""
    mask = request.headers.get(RESET_MASK_HEADER)
    return OperationRow(
        id=contract.new_id(_OPERATION_PREFIX),
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method=request.rpc.path,
        description=f"{request.rpc.name} {title}",
        created_by=request.subject_id,
        created_at=now,
        resource_version=row.resource_version,
        request=request.redacted,
        request_headers={RESET_MASK_HEADER: mask} if mask else {},
        request_id=request.request_id,
    )


def insert_operation(tx: Transaction, request: Request, new: NewOperation, now: datetime) -> Message:
    """Write the operation of a custom verb and return the answer."""
    row = new_operation(request, new.row, now, new.title)
    if new.is_done:
        row = operations.finish(row, now)
    else:
        why = f"Cancelled: {request.rpc.name} was requested later."
        operations.abort_unfinished(tx, new.row.id, now, why)
    tx.insert_operation(row)
    if new.answer is not None:
        return new.answer(wire.operation_message(row))
    return wire.operation_message(row, request.rpc.output)


def accepted(kind: Kind, operation: OperationRow, now: datetime) -> OperationRow:
    """Return the operation, finished unless the kind has a reconciler that will finish it."""
    return operation if kind.is_reconciled else operations.finish(operation, now)


def recall(tx: Transaction, request: Request) -> Message | None:
    """Return the answer of an earlier attempt with the same idempotency key."""
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if not key:
        return None
    if len(key) > _MAX_KEY_LENGTH:
        raise contract.bad_field(
            IDEMPOTENCY_HEADER, f"is longer than {_MAX_KEY_LENGTH} characters; use a UUID"
        )
    known = tx.recall(request.subject_id, request.rpc.path, key)
    if known is None:
        return None
    if known.request_hash != _request_hash(request):
        raise contract.bad_field(
            IDEMPOTENCY_HEADER, "was used before with another request; make a new key for each request"
        )
    return request.rpc.output.FromString(known.response)


def remember(tx: Transaction, request: Request, answer: Message, now: datetime) -> None:
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key:
        tx.remember(
            IdempotencyKey(
                subject=request.subject_id,
                method=request.rpc.path,
                key=key,
                request_hash=_request_hash(request),
                response=answer.SerializeToString(),
                created_at=now,
            )
        )


def _request_hash(request: Request) -> str:
    digest = hashlib.sha256(request.headers.get(RESET_MASK_HEADER, "").encode() + b"\0")
    # Without secrets: a fast hash of a password would be as good as the password.
    digest.update(contract.redact(request.original).SerializeToString(deterministic=True))
    return digest.hexdigest()


def note_change(
    tx: Transaction, request: Request, now: datetime, resource_id: str, *, kind: str = "", parent_id: str = ""
) -> None:
    """Write the event of a change, which has only begun if its operation is in progress.

    `kind` and `parent_id` are those of a resource that is gone."""
    rows = list(_lineage(tx, resource_id)) or list(_lineage(tx, parent_id))
    is_gone = not rows or rows[0].id != resource_id
    event = _event(request, now, contract.Code.OK, resource_id)
    event = replace(_placed(event, rows), parent_id=parent_id)
    if is_gone and kind:
        event = _with_lost(event, resource_id, _last_name(tx, resource_id), wire.noun(kind, resource_id))
    unfinished, _ = tx.list_operations(resource_id=resource_id, unfinished=True)
    is_going_on = any(operation.method == request.rpc.path for operation in unfinished)
    tx.audit(replace(event, status=STARTED if is_going_on else DONE))


async def record_refusal(
    runtime: Runtime, request: Request, error: contract.ApiError, resource_id: str
) -> None:
    """Write the refusal once for each request. An unauthenticated caller has no tenant to log it in."""
    if request.subject is None or REFUSED in request.notes:
        return
    now, tenant_id, error = runtime.now(), request.subject.tenant_id, error.recorded_as

    def record(tx: Transaction) -> None:
        rows = list(_lineage(tx, resource_id))
        event = replace(_event(request, now, error.code, resource_id, error.message), status=ERROR)
        is_own = bool(rows) and (rows[-1].parent_id or rows[-1].id) == tenant_id
        tx.audit(_placed(event, rows) if is_own else event)

    await runtime.store.write(record)
    request.notes.add(REFUSED)


def named_resource(request: Request) -> str:
    """Return the id in a request: of the resource, or of the parent of a new one."""
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
        id=contract.new_id(_EVENT_PREFIX),
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
    """Return the event with its place: `rows` lead from the resource up to its tenant."""
    if not rows:
        return event
    return replace(
        event,
        tenant_id=rows[-1].parent_id or rows[-1].id,
        hierarchy=json.dumps(
            [[row.id, row.name, wire.noun(row.kind, row.id)] for row in reversed(rows)], ensure_ascii=False
        ),
        resource_kind=wire.noun(rows[0].kind, rows[0].id),
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
