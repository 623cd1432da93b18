"""What a caller may do: see what a project or tenant used, and what it costs.

Both are computed on each call and never stored, so a bill cannot disagree with what happened: from the
resources' history, and from what other sources have counted, such as the gateway's ledger of tokens.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import HistoryEntry, Transaction
from neocloud.core.usage import CountedUsage, Meter, Meters, UsageRecord, UsageSource, kept_from
from neocloud.messages.neocloud.billing.v1 import (
    GetReportRequest,
    ListUsageRequest,
    ListUsageResponse,
    Report,
    ReportLine,
)
from neocloud.messages.neocloud.billing.v1 import UsageRecord as UsageRecordMessage
from neocloud.services.billing.api.usage_pages import Window, key, page, read_cursor
from neocloud.services.billing.rules.price_list import price_list
from neocloud.services.billing.rules.rating import Line, rate, total
from neocloud.services.iam.types import CONTAINER, is_tenant


async def list_usage(call: Call, request: ListUsageRequest) -> ListUsageResponse:
    cursor = read_cursor(request)
    window = cursor.window if cursor else _window(request, call.dependencies.clock.now())
    records, token = page(await _usage(call, request.parent_id, window), request, window, cursor)
    return ListUsageResponse(
        items=[_usage_message(record) for record in records],
        start=window.start,
        end=window.end,
        next_page_token=token,
    )


async def get_report(call: Call, request: GetReportRequest) -> Report:
    window = _window(request, call.dependencies.clock.now())
    prices = price_list(call.dependencies.provided)
    lines = rate(await _usage(call, request.parent_id, window), prices)
    return Report(
        lines=[_line_message(line) for line in lines],
        total_cost=f"{total(lines):f}",
        currency=prices.currency,
        start=window.start,
        end=window.end,
    )


def _window(request: Any, now: datetime) -> Window:
    """From the start of the month until now, unless told otherwise; nothing of the future."""
    now = now.replace(microsecond=0)
    month = now.replace(day=1, hour=0, minute=0, second=0)
    start = contract.to_datetime(request.start) if request.HasField("start") else month
    end = contract.to_datetime(request.end) if request.HasField("end") else now
    if request.HasField("start") and request.HasField("end") and end < start:
        raise contract.bad_field("end", "lies before start; swap them")
    end = min(end.replace(microsecond=0), now)
    return Window(min(start.replace(microsecond=0), end), end)


async def _usage(call: Call, parent_id: str, window: Window) -> Sequence[UsageRecord | CountedUsage]:
    provided, store = call.dependencies.provided, call.dependencies.store
    meters, source = provided.get(Meters), provided.find(UsageSource)
    projects, kept = await store.read(lambda tx: (_projects(tx, parent_id), kept_from(tx)))
    if kept is not None and window.start < kept:
        shown = kept.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise contract.bad_field("start", f"must be {shown} or later: usage of before then is not kept")
    histories = await store.read_long(lambda tx: _histories(tx, projects, meters, window.end))
    found: list[UsageRecord | CountedUsage] = [
        record
        for history in histories
        for meter in meters
        if history[0].kind in meter.kinds
        for record in meter(history, window.start, window.end)
    ]
    if source is not None:
        found += await asyncio.to_thread(source, projects, window.start, window.end)
    return sorted(found, key=key)


def _projects(tx: Transaction, parent_id: str) -> Sequence[str]:
    """The project, or all projects of the tenant."""
    parent = tx.get(parent_id)
    if parent is None or parent.kind != CONTAINER:
        raise contract.bad_field("parent_id", "must be the id of a project or a tenant")
    return (
        [row.id for row in tx.list(CONTAINER, parent_id=parent_id)[0]] if is_tenant(parent) else [parent_id]
    )


def _histories(
    tx: Transaction, projects: Sequence[str], meters: Sequence[Meter], until: datetime
) -> Sequence[Sequence[HistoryEntry]]:
    """The history of each metered resource in the projects."""
    kinds = [kind for meter in meters for kind in meter.kinds]
    found: dict[str, list[HistoryEntry]] = defaultdict(list)
    for project_id in projects:
        for entry in tx.history(kinds=kinds, parent_id=project_id, until=until):
            found[entry.resource_id].append(entry)
    return list(found.values())


def _usage_message(record: UsageRecord | CountedUsage) -> Any:
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


def _line_message(line: Line) -> Any:
    return ReportLine(
        resource_id=line.resource_id,
        resource_kind=line.resource_kind,
        resource_name=line.resource_name,
        day=line.day.isoformat(),
        sku=line.sku,
        quantity=f"{line.quantity:f}",
        unit=line.unit,
        unit_price="" if line.unit_price is None else f"{line.unit_price:f}",
        cost="" if line.cost is None else f"{line.cost:f}",
        is_unpriced=line.cost is None,
        parent_id=line.parent_id,
    )


METHODS = (
    Method(
        "neocloud.billing.v1.UsageService/ListUsage",
        list_usage,
        "billing.usage.list",
        target=lambda request: request.parent_id,
    ),
    Method(
        "neocloud.billing.v1.UsageService/GetReport",
        get_report,
        "billing.reports.get",
        target=lambda request: request.parent_id,
    ),
)
