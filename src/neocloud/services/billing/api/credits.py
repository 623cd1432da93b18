"""CreditService: what a tenant is not charged for, with the evidence of each.

A credit is a part of what the meters report, so it is computed on each call like the bill itself: nothing
can be credited twice, and what is learned late is in the next answer.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby

from neocloud.core.service import Call, Method
from neocloud.core.usage import Credit, CreditSource
from neocloud.messages.neocloud.billing.v1 import Credit as CreditMessage
from neocloud.messages.neocloud.billing.v1 import ListCreditsRequest, ListCreditsResponse
from neocloud.services.billing.api.usage import cause_message, usage_and_credits, usage_window
from neocloud.services.billing.rules.cost import rate, total
from neocloud.services.billing.rules.price_list import PriceList, price_list
from neocloud.services.billing.types import REPORT_PERMISSION


async def list_credits(call: Call, request: ListCreditsRequest) -> ListCreditsResponse:
    dependencies = call.dependencies
    window = usage_window(request, dependencies.clock.now())
    source = dependencies.provided.find(CreditSource)
    _, credits = await usage_and_credits(dependencies, request.parent_id, window, credits=source)
    prices = price_list(dependencies.provided)
    return ListCreditsResponse(
        items=[_message(group, prices) for group in _by_outage(credits)],
        total_amount=_amount(credits, prices),
        currency=prices.currency,
        start=window.start,
        end=window.end,
    )


def _by_outage(credits: Iterable[Credit]) -> Sequence[Sequence[Credit]]:
    """Return the credits of all SKUs of one stretch of time together, in order of time."""

    def stretch(credit: Credit) -> tuple[object, ...]:
        usage, cause = credit.usage, credit.cause
        return usage.start, usage.resource_id, cause.part, usage.end, cause.cause, cause.evidence

    return [list(group) for _, group in groupby(sorted(credits, key=stretch), key=stretch)]


def _message(credits: Sequence[Credit], prices: PriceList) -> CreditMessage:
    usage = credits[0].usage
    return CreditMessage(
        resource_id=usage.resource_id,
        resource_kind=usage.resource_kind,
        resource_name=usage.resource_name,
        parent_id=usage.parent_id,
        cause=cause_message(credits[0].cause),
        start=usage.start,
        end=usage.end,
        is_open=credits[0].is_open,
        seconds=usage.seconds,
        amount=_amount(credits, prices),
    )


def _amount(credits: Iterable[Credit], prices: PriceList) -> str:
    return f"{abs(total(rate((), prices, credits))) + Decimal(0):f}"


METHODS = (
    Method(
        "neocloud.billing.v1.CreditService/List",
        list_credits,
        REPORT_PERMISSION,
        target=lambda request: request.parent_id,
    ),
)
