"""Cancel, pause and resume: the wish changes, and the state at once where nothing needs to end first."""

from dataclasses import replace
from typing import Any

from neocloud.core import contract, custom_verbs, wire
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.tuning.v1 import (
    CancelFineTuningJobRequest,
    FineTuningJobStatus,
    PauseFineTuningJobRequest,
    ResumeFineTuningJobRequest,
)
from neocloud.services.compute.public import check_capacity
from neocloud.services.tuning.rules.job import shape_of
from neocloud.services.tuning.runtime_state import JobRecord, Wish, read_record, write_record
from neocloud.services.tuning.types import JOB, WORKING, State, StateEnum

SERVICE = "neocloud.tuning.v1.FineTuningJobService"
_WORD = "fine-tuning job"


async def cancel(call: Call, request: CancelFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> Any:
        row = job_row(tx, request.id)
        if row.state == State.CANCELLED:
            return _done(tx, call, row, "Cancel", request)
        if row.state in (State.SUCCEEDED, State.FAILED):
            raise contract.bad_state(row.id, f"The job is {row.state} already; there is nothing to cancel.")
        record = replace(read_record(tx, row.id), wish=Wish.CANCEL)
        return _change(tx, call, row, record, State.CANCELLED, "Cancel", request)

    return Write(work)


async def pause(call: Call, request: PauseFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> Any:
        row = job_row(tx, request.id)
        if row.state == State.PAUSED:
            return _done(tx, call, row, "Pause", request)
        if row.state not in WORKING:
            raise contract.bad_state(row.id, f"The job is {row.state}; only one that runs can be paused.")
        record = replace(read_record(tx, row.id), wish=Wish.PAUSE)
        return _change(tx, call, row, record, State(row.state), "Pause", request)

    return Write(work)


async def resume(call: Call, request: ResumeFineTuningJobRequest) -> Write[Operation]:
    inventory = await call.dependencies.engine.capabilities()

    def work(tx: Transaction) -> Any:
        row = job_row(tx, request.id)
        record = read_record(tx, row.id)
        if row.state in WORKING and record.wish is Wish.RUN:
            return _done(tx, call, row, "Resume", request)
        if row.state not in (State.PAUSED, State.FAILED, *WORKING):
            raise contract.bad_state(row.id, f"The job is {row.state}; start another from the same files.")
        shape = shape_of(wire.resource_message(row).spec)
        if shape is not None:  # it holds nothing now, whatever its spec says
            now, provided = call.dependencies.clock.now(), call.dependencies.provided
            reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
            check_capacity(reader, row.id, [(shape, 1)], [])
        fresh = JobRecord(attempt=record.attempt + 1)
        return _change(tx, call, row, fresh, State.QUEUED, "Resume", request)

    return Write(work)


def job_row(tx: Transaction, job_id: str) -> Resource:
    return custom_verbs.row_to_change(tx, JOB, job_id, _WORD)


def _change(
    tx: Transaction, call: Call, row: Resource, record: JobRecord, state: State, verb: str, request: Any
) -> Any:
    now = call.dependencies.clock.now()
    write_record(tx, row.id, record)
    status = FineTuningJobStatus.FromString(row.status)
    status.state, status.reconciling = StateEnum.Value(state), True
    if state is State.CANCELLED:
        status.finished_at.FromDatetime(now)
    if state is State.QUEUED:
        status.ClearField("error")
        status.ClearField("finished_at")
    changed = replace(
        row,
        status=status.SerializeToString(),
        state=state,
        updated_at=now,
        resource_version=row.resource_version + 1,  # a pass under way knows nothing of the new wish
    )
    return custom_verbs.changed(tx, call, request, changed, path=f"{SERVICE}/{verb}", title=_title(row))


def _done(tx: Transaction, call: Call, row: Resource, verb: str, request: Any) -> Any:
    """It is so already."""
    return custom_verbs.done(tx, call, request, row, path=f"{SERVICE}/{verb}", title=_title(row))


def _title(row: Resource) -> str:
    return f"{_WORD} {row.name}"
