"""The progress of a job: events, checkpoints and log, read from its folder for each request."""

import asyncio
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.messages.neocloud.tuning.v1 import (
    ListFineTuningCheckpointsRequest,
    ListFineTuningCheckpointsResponse,
    ListFineTuningEventsRequest,
    ListFineTuningEventsResponse,
    ReadFineTuningLogRequest,
    ReadFineTuningLogResponse,
)
from neocloud.services.tuning.api.lifecycle import job_row
from neocloud.services.tuning.types import work_folder
from neocloud.services.tuning.work_folder import Event, WorkFolder

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
    folder = await _folder(call, request.id)
    text = await asyncio.to_thread(folder.log_tail, request.lines or DEFAULT_LINES)
    return ReadFineTuningLogResponse(text=text)


async def _folder(call: Call, job_id: str) -> WorkFolder:
    await call.dependencies.store.read(lambda tx: job_row(tx, job_id))
    return WorkFolder(work_folder(call.dependencies.settings.home, job_id))


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
