"""The kind of fine-tuning jobs, its methods, and the permission that each needs.

Cancel, pause and resume change the desired state, and the state too where nothing has to end first. Events,
checkpoints and log are read from the job's folder for each request.
"""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.tuning.v1 import (
    CancelFineTuningJobRequest,
    FineTuningJobSpec,
    FineTuningJobStatus,
    ListFineTuningCheckpointsRequest,
    ListFineTuningCheckpointsResponse,
    ListFineTuningEventsRequest,
    ListFineTuningEventsResponse,
    PauseFineTuningJobRequest,
    ReadFineTuningLogRequest,
    ReadFineTuningLogResponse,
    ResumeFineTuningJobRequest,
)
from neocloud.services.compute.public import check_capacity
from neocloud.services.tuning.estimates import estimate
from neocloud.services.tuning.rules import FineTuningJobRules, shape_of
from neocloud.services.tuning.types import (
    JOB,
    JOB_ID_PREFIX,
    OUTPUT_REASONS,
    WORKING,
    Desired,
    JobState,
    RuntimeState,
    StateEnum,
    read_runtime_state,
    work_folder,
    write_runtime_state,
)
from neocloud.services.tuning.work_folder import Event, WorkFolder

SERVICE = "neocloud.tuning.v1.FineTuningJobService"
_LABEL = "fine-tuning job"
_POSITION = re.compile(r"[0-9]{1,18}")

Request = CancelFineTuningJobRequest | PauseFineTuningJobRequest | ResumeFineTuningJobRequest


async def cancel(call: Call, request: CancelFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        if row.state == JobState.CANCELLED:
            return NewOperation(row, _title(row))
        if row.state in (JobState.SUCCEEDED, JobState.FAILED):
            raise contract.bad_state(row.id, f"The job is {row.state} already; there is nothing to cancel.")
        runtime = replace(read_runtime_state(tx, row.id), desired=Desired.CANCEL)
        return _change(tx, call, row, runtime, JobState.CANCELLED)

    return Write(work)


async def pause(call: Call, request: PauseFineTuningJobRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        if row.state == JobState.PAUSED:
            return NewOperation(row, _title(row))
        if row.state not in WORKING:
            raise contract.bad_state(row.id, f"The job is {row.state}; only a running job can be paused.")
        runtime = replace(read_runtime_state(tx, row.id), desired=Desired.PAUSE)
        return _change(tx, call, row, runtime, JobState(row.state))

    return Write(work)


async def resume(call: Call, request: ResumeFineTuningJobRequest) -> Write[Operation]:
    inventory = await call.dependencies.engine.capabilities()

    def work(tx: Transaction) -> NewOperation:
        row = job_row(tx, request.id)
        runtime = read_runtime_state(tx, row.id)
        if row.state in WORKING and runtime.desired is Desired.RUN:
            return NewOperation(row, _title(row))
        if row.state not in (JobState.PAUSED, JobState.FAILED, *WORKING):
            raise contract.bad_state(row.id, f"The job is {row.state}; start another from the same files.")
        shape = shape_of(FineTuningJobSpec.FromString(row.spec))
        if shape is not None:  # a job that does not work holds no capacity
            now, provided = call.dependencies.clock.now(), call.dependencies.provided
            reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
            check_capacity(reader, row, [(shape, 1)], [], may_wait=True, may_preempt=True)
        error = FineTuningJobStatus.FromString(row.status).error.code
        if row.state == JobState.FAILED and error in OUTPUT_REASONS:  # it is trained already
            return _change(tx, call, row, replace(runtime, desired=Desired.RUN), JobState.QUEUED)
        fresh = RuntimeState(
            attempt=runtime.attempt + 1, saved_step=runtime.saved_step, submissions=runtime.submissions
        )
        return _change(tx, call, row, fresh, JobState.QUEUED)

    return Write(work)


def job_row(tx: Transaction, job_id: str) -> Resource:
    """Return the job's row. Raises ApiError when there is none or it is being deleted."""
    return row_to_change(tx, JOB, job_id, _LABEL)


def _change(
    tx: Transaction,
    call: Call,
    row: Resource,
    runtime: RuntimeState,
    state: JobState,
) -> NewOperation:
    now = call.dependencies.clock.now()
    write_runtime_state(tx, row.id, runtime)
    status = FineTuningJobStatus.FromString(row.status)
    status.state, status.reconciling = StateEnum.Value(state), True
    if state is JobState.CANCELLED:
        status.finished_at.FromDatetime(now)
    if state is JobState.QUEUED:
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


DEFAULT_PAGE = 100
DEFAULT_LINES = 200


async def list_events(call: Call, request: ListFineTuningEventsRequest) -> ListFineTuningEventsResponse:
    folder = await _folder(call, request.id)
    after = _event_key(request.page_token)
    found = [event for event in await asyncio.to_thread(folder.events) if _key(event) > after]
    size = request.page_size or DEFAULT_PAGE
    response = ListFineTuningEventsResponse()
    for event in found[:size]:
        response.items.add(
            id=event.id,
            created_at=_timestamp(event.time),
            level=event.level,
            message=event.message,
            type="metrics" if event.data else "message",
            data=event.data,
        )
    if len(found) > size:
        response.next_page_token = "{:.6f}/{}".format(*_key(found[size - 1]))
    return response


async def list_checkpoints(
    call: Call, request: ListFineTuningCheckpointsRequest
) -> ListFineTuningCheckpointsResponse:
    folder = await _folder(call, request.id)
    found = await asyncio.to_thread(folder.checkpoints)
    before = _step(request.page_token)
    rest = [each for each in found if before is None or each.step < before]
    size = request.page_size or DEFAULT_PAGE
    response = ListFineTuningCheckpointsResponse()
    for each in rest[:size]:
        item = response.items.add(
            id=f"ftckpt-{request.id.rpartition('-')[2]}-{each.step}",
            created_at=_timestamp(each.time),
            step_number=each.step,
            train_loss=each.train_loss,
        )
        if each.valid_loss is not None:
            item.valid_loss = each.valid_loss
    if len(rest) > size:
        response.next_page_token = str(rest[size - 1].step)
    return response


async def read_log(call: Call, request: ReadFineTuningLogRequest) -> ReadFineTuningLogResponse:
    row = await call.dependencies.store.read(lambda tx: job_row(tx, request.id))
    folder, has_ended = _work_folder(call, row.id), row.state not in WORKING
    if request.after:
        offset = _offset(request.after)
        part = await asyncio.to_thread(folder.log_after, offset, has_ended=has_ended)
    else:
        part = await asyncio.to_thread(folder.log_tail, request.lines or DEFAULT_LINES)
    return ReadFineTuningLogResponse(
        text=part.text, next_position=str(part.next_offset), is_complete=has_ended and part.is_end
    )


async def _folder(call: Call, job_id: str) -> WorkFolder:
    await call.dependencies.store.read(lambda tx: job_row(tx, job_id))
    return _work_folder(call, job_id)


def _work_folder(call: Call, job_id: str) -> WorkFolder:
    return WorkFolder(work_folder(call.dependencies.settings.home, job_id))


def _offset(position: str) -> int:
    if not _POSITION.fullmatch(position):
        raise contract.bad_field("after", "is not a next_position of an answer")
    return int(position)


def _key(event: Event) -> tuple[float, str]:
    return round(event.time, 6), event.id


def _event_key(token: str) -> tuple[float, str]:
    time, _, name = token.partition("/")
    try:
        return (float(time), name) if token else (0.0, "")
    except ValueError:
        raise contract.bad_field("page_token", "was not returned by this list") from None


def _step(token: str) -> int | None:
    if token and not token.isdecimal():
        raise contract.bad_field("page_token", "was not returned by this list")
    return int(token) if token else None


def _timestamp(seconds: float) -> Timestamp:
    return contract.timestamp(datetime.fromtimestamp(seconds, UTC))


class _RequestWithId(Protocol):
    id: str


def _id(request: _RequestWithId) -> str:
    return request.id


JOBS = Kind(
    message=JOB,
    rpc=SERVICE,
    id_prefix=JOB_ID_PREFIX,
    permission="tuning.fineTuningJobs",
    parent_kinds=("nebius.iam.v1.Container",),
    verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
    rules=FineTuningJobRules(),
    initial_state=JobState.VALIDATING_FILES,
    deleting_state=JobState.DELETING,
    stopped_state=JobState.QUEUED,
    working_states=WORKING,
    is_reconciled=True,
)
KINDS = (JOBS,)

METHODS = (
    Method(
        f"{SERVICE}/Estimate", estimate, "tuning.fineTuningJobs.create", lambda request: request.parent_id
    ),
    Method(f"{SERVICE}/Cancel", cancel, "tuning.fineTuningJobs.cancel", _id, is_change=True),
    Method(f"{SERVICE}/Pause", pause, "tuning.fineTuningJobs.pause", _id, is_change=True),
    Method(f"{SERVICE}/Resume", resume, "tuning.fineTuningJobs.resume", _id, is_change=True),
    Method(f"{SERVICE}/ListEvents", list_events, "tuning.fineTuningJobs.get", _id),
    Method(f"{SERVICE}/ListCheckpoints", list_checkpoints, "tuning.fineTuningJobs.get", _id),
    Method(f"{SERVICE}/ReadLog", read_log, "tuning.fineTuningJobs.get", _id),
)
