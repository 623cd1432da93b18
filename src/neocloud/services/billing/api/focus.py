"""Bills in the form of FOCUS, a UTC day at a time: neither a message nor the memory grows with the window.

The lines are those of the report of the same window, so the costs add up to its total.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from neocloud.core import contract
from neocloud.core.service import Call, Dependencies, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.billing.v1 import FocusReport, GetFocusReportRequest
from neocloud.services.billing.api.usage import Window, rated, usage_window
from neocloud.services.billing.rules import focus
from neocloud.services.billing.rules.cost import Line
from neocloud.services.billing.rules.price_list import price_list
from neocloud.services.billing.types import REPORT_PERMISSION
from neocloud.services.iam.types import CONTAINER, is_tenant


async def get_focus_report(call: Call, request: GetFocusReportRequest) -> FocusReport:
    scope = f"focus:{request.parent_id}:{request.start.ToJsonString()}:{request.end.ToJsonString()}"
    window, at = _position(request, scope, call.dependencies.clock.now())
    day = Window(at, min(_next_day(at), window.end))
    text = await _rows(call.dependencies, request.parent_id, day)
    times = (window.start, window.end, day.end)
    rest = ":".join(str(int(each.timestamp())) for each in times) if day.end < window.end else ""
    return FocusReport(
        csv=text if request.page_token else focus.header() + text,
        focus_version=focus.VERSION,
        start=window.start,
        end=window.end,
        next_page_token=contract.page_token(rest, scope),
    )


@dataclass(frozen=True)
class StoreFocusBills:
    """The FocusBills of public.py."""

    dependencies: Dependencies

    async def __call__(self, parent_id: str, start: datetime, end: datetime) -> str:
        text, at = focus.header(), start
        while at < end:
            day = Window(at, min(_next_day(at), end))
            text += await _rows(self.dependencies, parent_id, day)
            at = day.end
        return text


def _position(request: GetFocusReportRequest, scope: str, now: datetime) -> tuple[Window, datetime]:
    """Return the window of the report, and where the page begins."""
    content = contract.page_after(request.page_token, scope, numbers=3)
    if not content:
        window = usage_window(request, now)
        return window, window.start
    try:
        start, end, at = (datetime.fromtimestamp(int(each), UTC) for each in content.split(":"))
    except (ValueError, OverflowError, OSError):
        raise contract.bad_page_token() from None
    if not start <= at < end <= now:
        raise contract.bad_page_token()
    return Window(start, end), at


async def _rows(dependencies: Dependencies, parent_id: str, day: Window) -> str:
    prices = price_list(dependencies.provided)
    lines = await rated(dependencies, parent_id, day)
    if not lines:
        return ""
    region = getattr(dependencies.settings, "region", "")
    account = await dependencies.store.read_long(
        lambda tx: _account(tx, parent_id, lines, day, prices.currency, region)
    )
    return focus.rows(lines, account)


def _account(
    tx: Transaction, parent_id: str, lines: Iterable[Line], day: Window, currency: str, region: str
) -> focus.Account:
    parent = _container(tx, parent_id)
    tenant = parent if is_tenant(parent) else _container(tx, parent.parent_id)
    projects = {line.parent_id for line in lines}
    return focus.Account(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        currency=currency,
        region=region,
        projects={each: row.name for each in projects if (row := tx.get(each)) is not None},
        labels={each: _labels(tx, each, day.end) for each in {line.resource_id for line in lines}},
        start=day.start,
        end=day.end,
    )


def _labels(tx: Transaction, resource_id: str, until: datetime) -> Mapping[str, str]:
    """Return the labels that a resource had last before this time."""
    entries = tx.history(resource_id=resource_id, until=until)
    nothing: Mapping[str, str] = {}
    return next((entry.labels for entry in reversed(entries) if not entry.is_deleted), nothing)


def _container(tx: Transaction, container_id: str) -> Resource:
    row = tx.get(container_id)
    if row is None or row.kind != CONTAINER:
        raise contract.bad_field("parent_id", "must be the id of a project or a tenant")
    return row


def _next_day(at: datetime) -> datetime:
    return datetime.combine(at.date() + timedelta(days=1), time(), UTC)


METHODS = (
    Method(
        "neocloud.billing.v1.UsageService/GetFocusReport",
        get_focus_report,
        REPORT_PERMISSION,
        target=lambda request: request.parent_id,
    ),
)
