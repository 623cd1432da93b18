"""Rows of the store as messages of the contract: the one place where the two meet.

A row's `kind` is the full name of its resource message. Nothing here looks anything up or decides anything.
"""

from functools import cache
from typing import Any, TypeVar, overload

from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.core.store.protocol import OperationRow, Resource
from neocloud.messages.google.rpc import Status
from neocloud.messages.nebius.common.v1 import Operation, ProgressTracker
from neocloud.messages.nebius.common.v1 import ResourceMetadata as Metadata

M = TypeVar("M", bound=Message)
_CONTAINER = "nebius.iam.v1.Container"


def metadata(row: Resource) -> Metadata:
    """Return the nebius.common.v1.ResourceMetadata of a resource."""
    return Metadata(
        id=row.id,
        parent_id=row.parent_id,
        name=row.name,
        resource_version=row.resource_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        labels=dict(row.labels),
    )


def message(row: Resource, message_class: type[M]) -> M:
    """Return the resource as clients see it (metadata, spec and status), as a message of its own class:
    `message(row, Disk)`."""
    if message_class.DESCRIPTOR.full_name != row.kind:
        raise TypeError(f"{row.id} is a {row.kind}, no {message_class.DESCRIPTOR.full_name}.")
    return resource_message(row)


def resource_message(row: Resource) -> Any:
    """Return the same where the class is not known: in code that serves every kind."""
    resource = contract.message(row.kind)(metadata=metadata(row))
    if _has(row.kind, "spec"):
        resource.spec.ParseFromString(row.spec)
        resource.spec.SetInParent()
    if _has(row.kind, "status"):
        resource.status.ParseFromString(row.status)
        resource.status.SetInParent()
    return resource


def noun(kind: str, resource_id: str) -> str:
    """Return what people call a resource, "disk" for a "nebius.compute.v1.Disk".

    A Container is a "project" or a "tenant", as its id says.
    """
    return resource_id.partition("-")[0] if kind == _CONTAINER else kind.rpartition(".")[2].lower()


@overload
def operation_message(row: OperationRow) -> Operation: ...
@overload
def operation_message(row: OperationRow, operation_class: Any) -> Any: ...
def operation_message(row: OperationRow, operation_class: Any = Operation) -> Any:
    """Return the row as an Operation of either version; its status is present only when it is finished."""
    operation = operation_class(
        id=row.id,
        description=row.description,
        created_at=row.created_at,
        created_by=row.created_by,
        resource_id=row.resource_id,
    )
    for name, value in row.request_headers.items():
        operation.request_headers[name].values.append(value)
    if row.request:
        operation.request.ParseFromString(row.request)
    if row.finished_at is not None:
        operation.finished_at.FromDatetime(row.finished_at)
    if row.progress and operation_class is Operation:  # v1alpha1 has no tracker
        operation.progress_tracker.CopyFrom(progress_tracker(row))
    if row.code is not None:
        operation.status.CopyFrom(operation_status(row))
    return operation


def progress_tracker(row: OperationRow) -> ProgressTracker:
    """Return how far an operation is: `OperationRow.progress` is a ProgressTracker as JSON."""
    return contract.from_json(ProgressTracker, row.progress or "{}")


def operation_status(row: OperationRow) -> Status:
    """Return how a finished operation ended; a present and empty status means success."""
    status = Status.FromString(row.details)
    status.code = row.code or 0
    status.message = row.message
    return status


def with_state(kind: str, status: bytes, state: str) -> bytes:
    """Return the kind's status with this state; unchanged where the kind has no such state."""
    if not _has(kind, "status"):
        return status
    message = contract.message(kind)().status
    field = message.DESCRIPTOR.fields_by_name.get("state")
    value = field and field.enum_type and field.enum_type.values_by_name.get(state)
    if not value:
        return status
    message.ParseFromString(status)
    message.state = value.number
    return message.SerializeToString()


def state_of(resource: Any) -> str:
    """Return the name of the state in a resource's status; "" where its kind has none."""
    field = resource.status.DESCRIPTOR.fields_by_name.get("state")
    if field is None or field.enum_type is None:
        return ""
    return field.enum_type.values_by_number[resource.status.state].name


@cache
def _has(kind: str, field: str) -> bool:
    return field in contract.message(kind).DESCRIPTOR.fields_by_name
