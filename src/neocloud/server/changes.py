"""Write a change: resource, operation, audit event and idempotency key, in one transaction.

A change that was done before under the same idempotency key is answered as it was then, whatever has happened
since. The body of the request is part of the key's meaning: the same key with another body is refused.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.kind import Kind
from neocloud.core.store.protocol import IdempotencyKey, OperationRow, Resource, Transaction
from neocloud.server.auditing import note_change
from neocloud.server.inbound import IDEMPOTENCY_HEADER, RESET_MASK_HEADER, Inbound
from neocloud.server.runtime import Runtime

_OPERATION_PREFIX = "operation"
_MAX_KEY_LENGTH = 256


@dataclass(frozen=True)
class Change:
    """What the work of a verb left to be recorded."""

    operation: OperationRow
    is_recorded: bool = False
    """The operation is in the store already, because an earlier request asked for the same."""


async def commit(runtime: Runtime, inbound: Inbound, work: Callable[[Transaction], Change]) -> Any:
    """Run `work` and record it durably; answers with its Operation message."""

    def attempt(tx: Transaction) -> Any:
        replayed = recall(tx, inbound)
        if replayed is not None:
            return replayed
        change = work(tx)
        if not change.is_recorded:
            tx.insert_operation(change.operation)
        answer = wire.operation_message(change.operation, inbound.rpc.output)
        row = change.operation
        note_change(
            tx, inbound, runtime.now(), row.resource_id, kind=row.resource_kind, parent_id=row.parent_id
        )
        remember(tx, inbound, answer, runtime.now())
        return answer

    answer = await runtime.store.write(attempt)
    runtime.notify()
    return answer


def new_operation(inbound: Inbound, kind: Kind, row: Resource, now: datetime, title: str) -> OperationRow:
    """A pending operation of this request on this resource."""
    mask = inbound.headers.get(RESET_MASK_HEADER)
    return OperationRow(
        id=contract.new_id(_OPERATION_PREFIX),
        resource_id=row.id,
        resource_kind=kind.message,
        parent_id=row.parent_id,
        method=inbound.rpc.path,
        description=f"{inbound.rpc.name} {title}",
        created_by=inbound.subject_id,
        created_at=now,
        resource_version=row.resource_version,
        request=inbound.redacted,
        request_headers={RESET_MASK_HEADER: mask} if mask else {},
    )


def accepted(kind: Kind, operation: OperationRow, now: datetime) -> OperationRow:
    """Pending where a reconciler will finish it, finished at once where nothing is left to do."""
    return operation if kind.is_reconciled else operations.finish(operation, now)


def recall(tx: Transaction, inbound: Inbound) -> Any | None:
    """The answer of an earlier attempt with the same idempotency key."""
    key = inbound.headers.get(IDEMPOTENCY_HEADER)
    if not key:
        return None
    if len(key) > _MAX_KEY_LENGTH:
        raise contract.bad_field(
            IDEMPOTENCY_HEADER, f"is longer than {_MAX_KEY_LENGTH} characters; use a UUID"
        )
    known = tx.recall(inbound.subject_id, inbound.rpc.path, key)
    if known is None:
        return None
    if known.request_hash != _request_hash(inbound):
        raise contract.bad_field(
            IDEMPOTENCY_HEADER, "was used before with another request; make a new key for each request"
        )
    return inbound.rpc.output.FromString(known.response)


def remember(tx: Transaction, inbound: Inbound, answer: Any, now: datetime) -> None:
    key = inbound.headers.get(IDEMPOTENCY_HEADER)
    if key:
        tx.remember(
            IdempotencyKey(
                subject=inbound.subject_id,
                method=inbound.rpc.path,
                key=key,
                request_hash=_request_hash(inbound),
                response=answer.SerializeToString(),
                created_at=now,
            )
        )


def _request_hash(inbound: Inbound) -> str:
    digest = hashlib.sha256(inbound.headers.get(RESET_MASK_HEADER, "").encode() + b"\0")
    # Without secrets: a fast hash of a password would be as good as the password.
    digest.update(contract.redact(inbound.original).SerializeToString(deterministic=True))
    return digest.hexdigest()
