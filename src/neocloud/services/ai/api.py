"""What a caller may do beyond the standard verbs: start, stop, restart, cancel.

The wish is in the record; the state changes at once, so that none reads the old one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from neocloud.core import contract, custom_verbs, wire
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.services.ai.record import Record, read_record, write_record
from neocloud.services.ai.resources import ENDED, ENDPOINT, JOB, EndpointState, JobState
from neocloud.services.ai.rules.workload import demands
from neocloud.services.compute.public import check_capacity

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
    async def handler(call: Call, request: Any) -> Write[Any]:
        inventory = await call.dependencies.engine.capabilities()

        def work(tx: Transaction) -> Any:
            row = custom_verbs.row_to_change(tx, kind, request.id, _word(kind))
            record = read_record(tx, row.id) or _first(row)
            changed = change(row, record)
            if changed is None:
                title = f"{_word(kind)} {row.name}"
                return custom_verbs.done(tx, call, request, row, path=f"{service}/{verb}", title=title)
            if not changed[0].is_stopped:
                now, provided = call.dependencies.clock.now(), call.dependencies.provided
                reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
                check_capacity(reader, row.id, demands(wire.resource_message(row).spec), [])
            write_record(tx, row.id, changed[0])
            return _changed(tx, call, row, changed[1], f"{service}/{verb}", request)

        return Write(work)

    typed: Callable[[Call, Any], Awaitable[Any]] = handler
    return Method(f"{service}/{verb}", typed, permission, target=lambda request: request.id, is_change=True)


def _first(row: Resource) -> Record:
    spec = wire.resource_message(row).spec
    return Record(attempts_left=spec.restart_attempts if row.kind == JOB else 0)


def _changed(tx: Transaction, call: Call, row: Resource, state: str, path: str, request: Any) -> Any:
    changed = replace(
        row,
        status=wire.with_state(row.kind, row.status, state),
        state=state,
        updated_at=call.dependencies.clock.now(),
        # Another version, so that the operation waits for a pass that has seen the new wish.
        resource_version=row.resource_version + 1,
    )
    return custom_verbs.changed(tx, call, request, changed, path=path, title=f"{_word(row.kind)} {row.name}")


def _word(kind: str) -> str:
    return kind.rpartition(".")[2].lower()


METHODS = (
    _method(_ENDPOINTS, ENDPOINT, "Start", "ai.endpoints.start", _start),
    _method(_ENDPOINTS, ENDPOINT, "Stop", "ai.endpoints.stop", _stop),
    _method(_ENDPOINTS, ENDPOINT, "Restart", "ai.endpoints.restart", _restart_endpoint),
    _method(_JOBS, JOB, "Cancel", "ai.jobs.cancel", _cancel),
    _method(_JOBS, JOB, "Restart", "ai.jobs.restart", _restart_job),
)
