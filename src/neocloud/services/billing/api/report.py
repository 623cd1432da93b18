"""UsageService/GetReport: the bill of a project or tenant, its subtotals, and whose cost it is."""

from collections.abc import Sequence

from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.billing.v1 import GetReportRequest, Report, ReportLine
from neocloud.messages.neocloud.billing.v1 import Subtotal as SubtotalMessage
from neocloud.services.billing.api.accounts import rated_by_account
from neocloud.services.billing.api.usage import cause_message, rated, usage_window
from neocloud.services.billing.rules.accounts import AccountLine, Subtotal, subtotals
from neocloud.services.billing.rules.cost import total
from neocloud.services.billing.rules.focus import product_of
from neocloud.services.billing.rules.price_list import price_list
from neocloud.services.billing.types import REPORT_PERMISSION


async def get_report(call: Call, request: GetReportRequest) -> Report:
    dependencies = call.dependencies
    window = usage_window(request, dependencies.clock.now())
    if request.by_account:
        lines = await rated_by_account(dependencies, request.parent_id, window)
    else:
        lines = [AccountLine(line, "") for line in await rated(dependencies, request.parent_id, window)]
    report = Report(
        lines=[_line_message(each) for each in lines],
        total_cost=f"{total(each.line for each in lines):f}",
        currency=price_list(dependencies.provided).currency,
        start=window.start,
        end=window.end,
        by_product=_messages(subtotals((product_of(each.line), each.line) for each in lines)),
        by_project=_messages(subtotals((each.line.parent_id, each.line) for each in lines)),
    )
    if request.by_account:
        report.by_account.extend(_messages(subtotals((each.account_id, each.line) for each in lines)))
    return report


def _messages(found: Sequence[Subtotal]) -> Sequence[SubtotalMessage]:
    return [
        SubtotalMessage(key=each.key, cost=f"{each.cost:f}", has_unpriced=each.has_unpriced) for each in found
    ]


def _line_message(found: AccountLine) -> ReportLine:
    line = found.line
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
        credit=None if line.credit is None else cause_message(line.credit),
        product=product_of(line),
        account_id=found.account_id,
    )


METHODS = (
    Method(
        "neocloud.billing.v1.UsageService/GetReport",
        get_report,
        REPORT_PERMISSION,
        target=lambda request: request.parent_id,
    ),
)
