"""Verbs that are done in the moment they are asked for: the finished operation they answer with."""

from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call
from neocloud.core.store.protocol import OperationRow, Resource, Transaction

OPERATION_ID_PREFIX = "operation"


def done(tx: Transaction, call: Call, request: Any, row: Resource, *, path: str, title: str) -> Any:
    """Records that `path` was done to the resource; its Operation. The request is kept without secrets."""
    now = call.dependencies.clock.now()
    operation = OperationRow(
        id=contract.new_id(OPERATION_ID_PREFIX),
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method=path,
        description=f"{path.rpartition('/')[2]} {title}",
        created_by=call.subject.id if call.subject else "",
        created_at=now,
        resource_version=row.resource_version,
        request=contract.pack(contract.redact(request)).SerializeToString(),
    )
    finished = operations.finish(operation, now)
    tx.insert_operation(finished)
    return wire.operation_message(finished)
