"""UsageService: the usage of a project or tenant, and what the lines of its bill are made from.

Both are computed on each call and never stored, so a bill cannot contradict the history: from the resources'
history, and from other sources that count, such as the gateway's ledger of tokens. A page token therefore
keeps the window of its list too: usage of a resource that still runs neither moves nor grows between pages.
Usage that the ledger aggregates between two pages keeps its place in the list.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.core.service import Call, Dependencies, Method
from neocloud.core.store.protocol import HistoryEntry, Transaction
from neocloud.core.usage import (
    CountedUsage,
    Credit,
    CreditCause,
    CreditSource,
    CreditsUnknown,
    Meter,
    Meters,
    UsageRecord,
    UsageSource,
    kept_from,
)
from neocloud.messages.neocloud.billing.v1 import CreditCause as CreditCauseMessage
from neocloud.messages.neocloud.billing.v1 import (
    GetFocusReportRequest,
    GetReportRequest,
    ListCreditsRequest,
    ListUsageRequest,
    ListUsageResponse,
)
from neocloud.messages.neocloud.billing.v1 import UsageRecord as UsageRecordMessage
from neocloud.services.billing.rules.cost import Line, rate
from neocloud.services.billing.rules.price_list import price_list
from neocloud.services.iam.types import CONTAINER, is_tenant

Record = UsageRecord | CountedUsage

MAX_PAGE_SIZE = 1000
_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Window:
    start: datetime
    end: datetime


@dataclass(frozen=True)
class PageCursor:
    """The position of a page: after this record of this window."""

    window: Window
    after: tuple[int, str, str, str, str]

    def token(self, request: ListUsageRequest) -> str:
        content = [_seconds(self.window.start), _seconds(self.window.end), *self.after]
        return contract.page_token(json.dumps(content), _list_of(request))


async def list_usage(call: Call, request: ListUsageRequest) -> ListUsageResponse:
    cursor = read_cursor(request)
    window = cursor.window if cursor else usage_window(request, call.dependencies.clock.now())
    records, token = page(await usage(call.dependencies, request.parent_id, window), request, window, cursor)
    return ListUsageResponse(
        items=[_usage_message(record) for record in records],
        start=window.start,
        end=window.end,
        next_page_token=token,
    )


def usage_window(
    request: ListUsageRequest | GetReportRequest | GetFocusReportRequest | ListCreditsRequest, now: datetime
) -> Window:
    """Return the requested window, without the future; by default from the start of the month until now."""
    now = now.replace(microsecond=0)
    month = now.replace(day=1, hour=0, minute=0, second=0)
    start = contract.to_datetime(request.start) if request.HasField("start") else month
    end = contract.to_datetime(request.end) if request.HasField("end") else now
    if request.HasField("start") and request.HasField("end") and end < start:
        raise contract.bad_field("end", "is before start; swap them")
    end = min(end.replace(microsecond=0), now)
    return Window(min(start.replace(microsecond=0), end), end)


async def usage(dependencies: Dependencies, parent_id: str, window: Window) -> Sequence[Record]:
    """Return the usage of a project or tenant, before credits. Raises ApiError."""
    return (await usage_and_credits(dependencies, parent_id, window, credits=None))[0]


async def rated(dependencies: Dependencies, parent_id: str, window: Window) -> Sequence[Line]:
    """Return the lines of a bill. Raises ApiError."""
    source = dependencies.provided.find(CreditSource)
    records, credits = await usage_and_credits(dependencies, parent_id, window, credits=source)
    return rate(records, price_list(dependencies.provided), credits)


async def usage_and_credits(
    dependencies: Dependencies, parent_id: str, window: Window, *, credits: CreditSource | None
) -> tuple[Sequence[Record], Sequence[Credit]]:
    """Return the usage, and what of it is not charged. Raises ApiError."""
    provided, store = dependencies.provided, dependencies.store
    meters, source = provided.get(Meters), provided.find(UsageSource)
    projects, kept = await store.read(lambda tx: (projects_of(tx, parent_id), kept_from(tx)))
    if kept is not None and window.start < kept:
        first = kept.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise contract.bad_field("start", f"must be {first} or later: usage of before then is not kept")
    histories = await store.read_long(lambda tx: _histories(tx, projects, meters, window.end))
    found: list[Record] = [
        record
        for history in histories
        for meter in meters
        if history[0].kind in meter.kinds
        for record in meter(history, window.start, window.end)
    ]
    if source is not None:
        found += await asyncio.to_thread(lambda: list(source(projects, window.start, window.end)))
    try:
        credited = await credits(histories, window.start, window.end) if credits else ()
    except CreditsUnknown as error:
        raise ApiError(contract.Code.DATA_LOSS, str(error)) from error
    return sorted(found, key=key), credited


def projects_of(tx: Transaction, parent_id: str) -> Sequence[str]:
    """Return the project, or all projects of the tenant."""
    parent = tx.get(parent_id)
    if parent is None or parent.kind != CONTAINER:
        raise contract.bad_field("parent_id", "must be the id of a project or a tenant")
    return (
        [row.id for row in tx.list(CONTAINER, parent_id=parent_id)[0]] if is_tenant(parent) else [parent_id]
    )


def _histories(
    tx: Transaction, projects: Sequence[str], meters: Sequence[Meter], until: datetime
) -> Sequence[Sequence[HistoryEntry]]:
    """Return the history of each metered resource in the projects."""
    kinds = [kind for meter in meters for kind in meter.kinds]
    found: dict[str, list[HistoryEntry]] = defaultdict(list)
    for project_id in projects:
        for entry in tx.history(kinds=kinds, parent_id=project_id, until=until):
            found[entry.resource_id].append(entry)
    return list(found.values())


def _usage_message(record: Record) -> UsageRecordMessage:
    message = UsageRecordMessage(
        resource_id=record.resource_id,
        resource_kind=record.resource_kind,
        resource_name=record.resource_name,
        sku=record.sku,
        start=record.start,
        end=record.end,
        parent_id=record.parent_id,
    )
    if isinstance(record, CountedUsage):
        message.count = record.count
    else:
        message.units, message.seconds = record.units, record.seconds
    return message


def cause_message(cause: CreditCause) -> CreditCauseMessage:
    return CreditCauseMessage(
        part=cause.part, cause=cause.cause, evidence=cause.evidence, reason=cause.reason
    )


def read_cursor(request: ListUsageRequest) -> PageCursor | None:
    """Return the cursor in the request's token, None for the first page.

    Raise ApiError for the token of another list.
    """
    content = contract.page_after(request.page_token, _list_of(request))
    if not content:
        return None
    try:
        start, end, number, *names = json.loads(content)
        window = Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))
        first, second, third, fourth = names
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        raise contract.bad_page_token() from None
    if type(number) is not int or not all(isinstance(name, str) for name in names):
        raise contract.bad_page_token()
    return PageCursor(window, (number, first, second, third, fourth))


def page(
    records: Sequence[Record], request: ListUsageRequest, window: Window, cursor: PageCursor | None
) -> tuple[Sequence[Record], str]:
    """Return a page of these sorted records, and the token of the next one. Size 0 means all records."""
    rest = [record for record in records if cursor is None or key(record) > cursor.after]
    size = min(request.page_size, MAX_PAGE_SIZE) or len(rest)
    found = rest[:size]
    return found, PageCursor(window, key(found[-1])).token(request) if len(rest) > size else ""


def key(record: Record) -> tuple[int, str, str, str, str]:
    """Return a unique sort key of the record, the same for as long as its page tokens are used.

    A model has several payers and prices. Counted usage has its day as the time: its start moves to the full
    hour when the ledger aggregates old requests.
    """
    begin = _seconds(record.start)
    if isinstance(record, CountedUsage):
        day, price = begin - begin % _DAY_SECONDS, str(record.unit_price)
        return day, record.resource_id, record.sku, record.parent_id, price
    return begin, record.resource_id, record.sku, record.parent_id, ""


def _list_of(request: ListUsageRequest) -> str:
    window = (request.start.ToJsonString(), request.end.ToJsonString())
    return f"usage:{request.parent_id}:{':'.join(window)}"


def _seconds(at: datetime) -> int:
    """Usage is in whole seconds."""
    return int(at.timestamp())


METHODS = (
    Method(
        "neocloud.billing.v1.UsageService/ListUsage",
        list_usage,
        "billing.usage.list",
        target=lambda request: request.parent_id,
    ),
)
