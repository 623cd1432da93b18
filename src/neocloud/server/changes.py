# pyright: strict
"""Write a change of a standard or custom verb: resource, operation, audit event and idempotency key, in one
transaction.

A change that was done before under the same idempotency key is answered as it was then, whatever has happened
since. The body of the request is part of the key's meaning: the same key with another body is refused.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from google.protobuf.message import Message

from neocloud.core import contract, operations, wire
from neocloud.core.kind import Kind
from neocloud.core.service import NewOperation
from neocloud.core.store.protocol import IdempotencyKey, OperationRow, Resource, Transaction
from neocloud.server.audit import note_change
from neocloud.server.request import IDEMPOTENCY_HEADER, RESET_MASK_HEADER, Request, Runtime

_OPERATION_PREFIX = "operation"
_MAX_KEY_LENGTH = 256


@dataclass(frozen=True)
class Change:
    """What the work of a verb left to be recorded."""

    operation: OperationRow
    is_recorded: bool = False
    """The operation is in the store already, because an earlier request asked for the same."""


@dataclass(frozen=True)
class Answered:
    """A change whose work made the answer itself, and what the change was about."""

    answer: Message
    resource_id: str


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
    note_change(tx, request, now, done.resource_id)
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
    """The answer of an earlier attempt with the same idempotency key."""
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
