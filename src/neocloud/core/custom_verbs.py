"""What verbs beyond Create, Update and Delete share: the row they change, and the Operation they answer.

A verb names itself by the path of its method ("neocloud.tuning.v1.FineTuningJobService/Cancel") and says in a
title whom it is about. Requests are kept without secrets.
"""

from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call
from neocloud.core.store.protocol import OperationRow, Resource, Transaction

_ID_PREFIX = "operation"


def row_to_change(tx: Transaction, kind: str, resource_id: str, title: str) -> Resource:
    """Raises ApiError where there is no such row, or it is on its way out."""
    row = tx.get(resource_id)
    if row is None or row.kind != kind:
        raise contract.not_found(title, resource_id)
    if row.deleted_at is not None:
        raise contract.bad_state(row.id, f"{row.id} is being deleted.")
    return row


def changed(tx: Transaction, call: Call, request: Any, row: Resource, *, path: str, title: str) -> Any:
    """Store the changed row; what still went on is replaced by an operation that its reconciler will end."""
    now, verb = call.dependencies.clock.now(), path.rpartition("/")[2]
    operations.abort_unfinished(tx, row.id, now, f"Replaced by {verb}.")
    tx.update(row)
    return pending(tx, call, request, row, path=path, title=title)


def pending(tx: Transaction, call: Call, request: Any, row: Resource, *, path: str, title: str) -> Any:
    """An operation that the reconciler of the row will end."""
    operation = operation_of(call, request, row, path=path, title=title)
    tx.insert_operation(operation)
    return wire.operation_message(operation)


def done(tx: Transaction, call: Call, request: Any, row: Resource, *, path: str, title: str) -> Any:
    """It is so in this moment, or was already."""
    operation = operation_of(call, request, row, path=path, title=title)
    finished = operations.finish(operation, call.dependencies.clock.now())
    tx.insert_operation(finished)
    return wire.operation_message(finished)


def operation_of(call: Call, request: Any, row: Resource, *, path: str, title: str) -> OperationRow:
    return OperationRow(
        id=contract.new_id(_ID_PREFIX),
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method=path,
        description=f"{path.rpartition('/')[2]} {title}".strip(),
        created_by=call.subject.id if call.subject else "",
        created_at=call.dependencies.clock.now(),
        resource_version=row.resource_version,
        request=contract.pack(contract.redact(request)).SerializeToString(),
    )
