"""Cancel, pause and resume: change the desired state, and the state too where nothing has to end first."""

from dataclasses import replace

from neocloud.core import contract
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.tuning.v1 import (
    CancelFineTuningJobRequest,
    FineTuningJobSpec,
    FineTuningJobStatus,
    PauseFineTuningJobRequest,
    ResumeFineTuningJobRequest,
)
from neocloud.services.compute.public import check_capacity
from neocloud.services.tuning.rules.job import shape_of
from neocloud.services.tuning.runtime_state import (
    Desired,
    RuntimeState,
    read_runtime_state,
    write_runtime_state,
)
from neocloud.services.tuning.types import JOB, WORKING, State, StateEnum

SERVICE = "neocloud.tuning.v1.FineTuningJobService"
_LABEL = "fine-tuning job"

Request = CancelFineTuningJobRequest | PauseFineTuningJobRequest | ResumeFineTuningJobRequest


async def cancel(call: Call, request: CancelFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        if row.state == State.CANCELLED:
            return NewOperation(row, _title(row))
        if row.state in (State.SUCCEEDED, State.FAILED):
            raise contract.bad_state(row.id, f"The job is {row.state} already; there is nothing to cancel.")
        runtime = replace(read_runtime_state(tx, row.id), desired=Desired.CANCEL)
        return _change(tx, call, row, runtime, State.CANCELLED)

    return Write(work)


async def pause(call: Call, request: PauseFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        if row.state == State.PAUSED:
            return NewOperation(row, _title(row))
        if row.state not in WORKING:
            raise contract.bad_state(row.id, f"The job is {row.state}; only a running job can be paused.")
        runtime = replace(read_runtime_state(tx, row.id), desired=Desired.PAUSE)
        return _change(tx, call, row, runtime, State(row.state))

    return Write(work)


async def resume(call: Call, request: ResumeFineTuningJobRequest) -> Write[Operation]:
    inventory = await call.dependencies.engine.capabilities()

    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        runtime = read_runtime_state(tx, row.id)
        if row.state in WORKING and runtime.desired is Desired.RUN:
            return NewOperation(row, _title(row))
        if row.state not in (State.PAUSED, State.FAILED, *WORKING):
            raise contract.bad_state(row.id, f"The job is {row.state}; start another from the same files.")
        shape = shape_of(FineTuningJobSpec.FromString(row.spec))
        if shape is not None:  # a job that does not work holds no capacity
            now, provided = call.dependencies.clock.now(), call.dependencies.provided
            reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
            check_capacity(reader, row, [(shape, 1)], [])
        fresh = RuntimeState(attempt=runtime.attempt + 1)
        return _change(tx, call, row, fresh, State.QUEUED)

    return Write(work)


def job_row(tx: Transaction, job_id: str) -> Resource:
    """Return the job's row. Raises ApiError when there is none or it is being deleted."""
    return row_to_change(tx, JOB, job_id, _LABEL)


def _change(
    tx: Transaction,
    call: Call,
    row: Resource,
    runtime: RuntimeState,
    state: State,
) -> NewOperation:
    now = call.dependencies.clock.now()
    write_runtime_state(tx, row.id, runtime)
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
        resource_version=row.resource_version + 1,  # a run that has read the old desired state cannot commit
    )
    tx.update(changed)
    return NewOperation(changed, _title(row), is_done=False)


def _title(row: Resource) -> str:
    return f"{_LABEL} {row.name}"
