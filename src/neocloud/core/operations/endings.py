# pyright: strict
"""How operations end: done, failed, or replaced by a later one. An operation ends once and stays as it is."""

from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.contract import ApiError, Code
from neocloud.core.operations.progress import completed
from neocloud.core.store.protocol import OperationRow, Transaction

ALLOWED = frozenset(
    {
        Code.OK,
        Code.CANCELLED,
        Code.PERMISSION_DENIED,
        Code.RESOURCE_EXHAUSTED,
        Code.FAILED_PRECONDITION,
        Code.ABORTED,
        Code.INTERNAL,
    }
)
"""The codes that the contract allows an operation to end with."""


def finish(operation: OperationRow, now: datetime, error: ApiError | None = None) -> OperationRow:
    """The operation as it ends now: well, or with this error."""
    if operation.code is not None:
        raise ValueError(f"The operation {operation.id} has ended already.")
    if error is None:
        progress = completed(operation.progress, now)
        return replace(operation, finished_at=now, code=int(Code.OK), progress=progress)
    code = error.code if error.code in ALLOWED else Code.INTERNAL
    return replace(
        operation,
        finished_at=now,
        code=int(code),
        message=error.message,
        details=error.status(_service_name(operation)).SerializeToString(),
    )


def finish_for(
    tx: Transaction, resource_id: str, now: datetime, *, observed_version: int, error: ApiError | None = None
) -> int:
    """The reconciler has made this version of the resource true, or cannot: end what waited for it.

    Of a Delete only a failure is told here; it is done when the row is gone. Says how many have ended.
    """
    waiting = [
        operation
        for operation in _unfinished(tx, resource_id)
        if operation.resource_version <= observed_version and (error is not None or not is_delete(operation))
    ]
    for operation in waiting:
        tx.update_operation(finish(operation, now, error))
    return len(waiting)


def finish_removed(tx: Transaction, resource_id: str, now: datetime) -> int:
    """The row is gone: its Delete is done, and nothing else can be any more."""
    waiting = _unfinished(tx, resource_id)
    for operation in waiting:
        error = None if is_delete(operation) else _aborted(operation, "The resource was deleted.")
        tx.update_operation(finish(operation, now, error))
    return len(waiting)


def abort_unfinished(tx: Transaction, resource_id: str, now: datetime, message: str) -> int:
    """A later change of the resource replaces what was still going on."""
    waiting = _unfinished(tx, resource_id)
    for operation in waiting:
        tx.update_operation(finish(operation, now, _aborted(operation, message)))
    return len(waiting)


def is_delete(operation: OperationRow) -> bool:
    return operation.method.rpartition("/")[2] == "Delete"


def _unfinished(tx: Transaction, resource_id: str) -> list[OperationRow]:
    return list(tx.list_operations(resource_id=resource_id, unfinished=True)[0])


def _aborted(operation: OperationRow, message: str) -> ApiError:
    return contract.operation_aborted(operation.id, "", operation.resource_id, message)


def _service_name(operation: OperationRow) -> str:
    """ "slurm" of "neocloud.slurm.v1.ClusterService/Create"."""
    parts = operation.method.split(".")
    return parts[1] if len(parts) > 2 else ""
