"""What a caller may do beyond the standard verbs: start, stop, restart, cancel.

The wish is in the record; the state changes at once, so that none reads the old one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import OperationRow, Resource, Transaction
from neocloud.core.world import StoreWorld
from neocloud.services.ai.record import Record, read_record, write_record
from neocloud.services.ai.resources import ENDED, ENDPOINT, JOB, EndpointState, JobState
from neocloud.services.ai.rules.workload import demands
from neocloud.services.compute.resources import check_room

OPERATION_PREFIX = "operation"
_ENDPOINTS, _JOBS = "nebius.ai.v1.EndpointService", "nebius.ai.v1.JobService"

Change = Callable[[Resource, Record], tuple[Record, str] | None]
"""The record and the state to come; None where it is so already."""


def _start(row: Resource, record: Record) -> tuple[Record, str] | None:
    if not record.is_stopped and row.state not in (EndpointState.ERROR, EndpointState.STOPPED):
        return None
    return Record(round=record.round + 1), EndpointState.STARTING


def _stop(row: Resource, record: Record) -> tuple[Record, str] | None:
    if record.is_stopped and row.state == EndpointState.STOPPED:
        return None
    return replace(record, is_stopped=True), EndpointState.STOPPING


def _restart_endpoint(row: Resource, record: Record) -> tuple[Record, str] | None:
    return Record(round=record.round + 1), EndpointState.STARTING


def _cancel(row: Resource, record: Record) -> tuple[Record, str] | None:
    if record.outcome or row.state in ENDED:
        raise contract.bad_state(row.id, f"{row.name or row.id} has ended already ({row.state}).")
    return replace(record, is_stopped=True), JobState.CANCELLING


def _restart_job(row: Resource, record: Record) -> tuple[Record, str] | None:
    if not record.outcome and row.state not in ENDED:
        raise contract.bad_state(row.id, f"{row.name or row.id} is {row.state}; cancel it first.")
    attempts = wire.resource_message(row).spec.restart_attempts
    return Record(round=record.round + 1, attempts_left=attempts), JobState.STARTING


def _method(service: str, kind: str, verb: str, permission: str, change: Change) -> Method:
    async def handler(call: Call, request: Any) -> Any:
        inventory = await call.dependencies.engine.capabilities()

        def work(tx: Transaction) -> Any:
            row = _row(tx, kind, request.id)
            record = read_record(tx, row.id) or _first(row)
            changed = change(row, record)
            if changed is None:
                return _done(tx, call, row, f"{service}/{verb}", request)
            if not changed[0].is_stopped:
                world = StoreWorld(tx, call.dependencies.clock.now(), inventory=inventory)
                check_room(world, row.id, demands(wire.resource_message(row).spec), [])
            write_record(tx, row.id, changed[0])
            return _changed(tx, call, row, changed[1], f"{service}/{verb}", request)

        return await call.dependencies.store.write(work)

    typed: Callable[[Call, Any], Awaitable[Any]] = handler
    return Method(f"{service}/{verb}", typed, permission, target=lambda request: request.id, is_change=True)


def _first(row: Resource) -> Record:
    spec = wire.resource_message(row).spec
    return Record(attempts_left=spec.restart_attempts if row.kind == JOB else 0)


def _row(tx: Transaction, kind: str, resource_id: str) -> Resource:
    row = tx.get(resource_id)
    if row is None or row.kind != kind:
        raise contract.not_found(kind.rpartition(".")[2].lower(), resource_id)
    if row.deleted_at is not None:
        raise contract.bad_state(row.id, f"{row.id} is being deleted.")
    return row


def _changed(tx: Transaction, call: Call, row: Resource, state: str, path: str, request: Any) -> Any:
    now = call.dependencies.clock.now()
    operations.abort_unfinished(tx, row.id, now, f"Replaced by {path.rpartition('/')[2]}.")
    status = wire.with_state(row.kind, row.status, state)
    # Another version, so that the operation waits for a pass that has seen the new wish.
    changed = replace(
        row, status=status, state=state, updated_at=now, resource_version=row.resource_version + 1
    )
    tx.update(changed)
    operation = _operation(call, changed, path, request)
    tx.insert_operation(operation)
    return wire.operation_message(operation)


def _done(tx: Transaction, call: Call, row: Resource, path: str, request: Any) -> Any:
    operation = operations.finish(_operation(call, row, path, request), call.dependencies.clock.now())
    tx.insert_operation(operation)
    return wire.operation_message(operation)


def _operation(call: Call, row: Resource, path: str, request: Any) -> OperationRow:
    verb, word = path.rpartition("/")[2], row.kind.rpartition(".")[2].lower()
    return OperationRow(
        id=contract.new_id(OPERATION_PREFIX),
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method=path,
        description=f"{verb} {word} {row.name}".strip(),
        created_by=call.subject.id if call.subject else "",
        created_at=call.dependencies.clock.now(),
        resource_version=row.resource_version,
        request=contract.pack(request).SerializeToString(),
    )


METHODS = (
    _method(_ENDPOINTS, ENDPOINT, "Start", "ai.endpoints.start", _start),
    _method(_ENDPOINTS, ENDPOINT, "Stop", "ai.endpoints.stop", _stop),
    _method(_ENDPOINTS, ENDPOINT, "Restart", "ai.endpoints.restart", _restart_endpoint),
    _method(_JOBS, JOB, "Cancel", "ai.jobs.cancel", _cancel),
    _method(_JOBS, JOB, "Restart", "ai.jobs.restart", _restart_job),
)
