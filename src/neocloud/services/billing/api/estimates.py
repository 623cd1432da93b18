"""Costs before anything is created: of resources (CalculatorService, in both its versions) and of tokens
(TokenPriceService).

Every signed-in subject may call them: answers follow from the price list alone, not from anyone's resources.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.nebius.billing import v1alpha1 as alpha
from neocloud.messages.nebius.billing.v1 import (
    AggregationUnit,
    CostBreakdown,
    EstimateBatchRequest,
    EstimateBatchResponse,
    FilterAggregationUnit,
)
from neocloud.messages.neocloud.billing.v1 import (
    EstimateTokensRequest,
    EstimateTokensResponse,
    ListTokenPricesRequest,
    ListTokenPricesResponse,
)
from neocloud.messages.neocloud.billing.v1 import EstimateTokensResponse as EstimateResponse
from neocloud.messages.neocloud.billing.v1 import ListTokenPricesResponse as ListResponse
from neocloud.services.billing.rules.catalogue import priced_models, token_prices
from neocloud.services.billing.rules.cost import (
    SPANS,
    USUAL_SPANS,
    SkuCost,
    costs,
    exact,
    rounded_up,
)
from neocloud.services.billing.rules.held import NoEstimate, units
from neocloud.services.billing.rules.price_list import PriceList, Unit, price_list
from neocloud.services.billing.types import CACHED_INPUT, INPUT, OUTPUT, TOKEN_KINDS, TokenPrices, token_sku

_V1, _V1ALPHA1 = "nebius.billing.v1", "nebius.billing.v1alpha1"
Filter = FilterAggregationUnit.FilterAggregationUnitValue
AlphaResponse = TypeVar("AlphaResponse", alpha.EstimateBatchResponse, alpha.EstimateResponse)
_FILTER_START = "FILTER_AGGREGATION_UNIT_"


async def estimate_batch(call: Call, request: EstimateBatchRequest) -> EstimateBatchResponse:
    prices = _prices(call)
    if request.currency and request.currency.upper() != prices.currency:
        raise contract.bad_field("currency", f"is {request.currency!r}; this cloud charges {prices.currency}")
    resources = [
        _unpacked(spec.spec, f"resource_specs[{index}]") for index, spec in enumerate(request.resource_specs)
    ]
    answer = EstimateBatchResponse(currency=prices.currency)
    for span in _spans(request):
        unit = AggregationUnit(unit=span, unit_type=AggregationUnit.UnitType.Value("UNIT_TYPE_TIME_BASED"))
        all_costs: list[SkuCost] = []
        for index, resource in enumerate(resources):
            found = _costs(call, resource, span, prices, f"resource_specs[{index}]")
            all_costs += found
            cost = answer.resource_costs.add(metadata=resource.metadata, aggregation_unit=unit)
            cost.general.total.CopyFrom(_breakdown(found))
        answer.total_costs.add(aggregation_unit=unit).general.total.CopyFrom(_breakdown(all_costs))
    return answer


async def estimate_batch_alpha(
    call: Call, request: alpha.EstimateBatchRequest
) -> alpha.EstimateBatchResponse:
    return _add_costs(call, alpha.EstimateBatchResponse(), request.resource_specs)


async def estimate_alpha(call: Call, request: alpha.EstimateRequest) -> alpha.EstimateResponse:
    return _add_costs(call, alpha.EstimateResponse(), [request.resource_spec])


def _add_costs(call: Call, answer: AlphaResponse, specs: Iterable[alpha.ResourceSpec]) -> AlphaResponse:
    prices = _prices(call)
    for field, span in (("hourly_cost", "hour"), ("monthly_cost", "month")):
        total = Fraction(0)
        for index, spec in enumerate(specs):
            chosen, path = spec.WhichOneof("resource_spec"), f"resource_specs[{index}]"
            if chosen is None:
                raise contract.bad_field(path, "is empty; give the request that would create the resource")
            found = _costs(call, getattr(spec, chosen), span, prices, path)
            total += sum((each.cost for each in found), Fraction(0))
        breakdown = getattr(answer, field).general.total
        breakdown.cost, breakdown.cost_rounded = exact(total), rounded_up(total)
    return answer


def _prices(call: Call) -> PriceList:
    return price_list(call.dependencies.provided)


def _spans(request: EstimateBatchRequest) -> Sequence[str]:
    names = [Filter.Name(value) for value in request.filter_aggregation_unit.filter_aggregation_unit_values]
    requested = {name.removeprefix(_FILTER_START).lower() for name in names}
    return [span for span in SPANS if span in requested] or USUAL_SPANS


def _unpacked(packed: Any, path: str) -> Any:
    """Return the request in a google.protobuf.Any."""
    try:
        return contract.unpack(packed)
    except (LookupError, DecodeError):
        raise contract.bad_field(
            f"{path}.spec", f"holds {packed.type_url!r}, which is not a request of this API"
        ) from None


def _costs(call: Call, resource: Message, span: str, prices: PriceList, path: str) -> Sequence[SkuCost]:
    try:
        return costs(units(resource), span, prices, call.dependencies.clock.now().date())
    except NoEstimate as error:
        raise contract.bad_field(f"{path}.{error.violation.field}", error.violation.message) from None


def _breakdown(found: Sequence[SkuCost]) -> CostBreakdown:
    by_sku: dict[str, tuple[Fraction, Fraction]] = {}
    for each in found:
        quantity, cost = by_sku.get(each.sku, (Fraction(0), Fraction(0)))
        by_sku[each.sku] = (quantity + each.quantity, cost + each.cost)
    total = sum((cost for _, cost in by_sku.values()), Fraction(0))
    breakdown = CostBreakdown(cost=exact(total), cost_rounded=rounded_up(total))
    for sku, (quantity, cost) in sorted(by_sku.items()):
        breakdown.sku_costs.add(
            sku_id=sku,
            quantity=exact(quantity),
            quantity_rounded=rounded_up(quantity),
            cost=exact(cost),
            cost_rounded=rounded_up(cost),
        )
    return breakdown


# The older version has whole requests in it, which may be incomplete for an estimate: they are not checked.
_RESOURCE_METHODS = (
    Method(f"{_V1}.CalculatorService/EstimateBatch", estimate_batch, ""),
    Method(f"{_V1ALPHA1}.CalculatorService/EstimateBatch", estimate_batch_alpha, "", is_checked=False),
    Method(f"{_V1ALPHA1}.CalculatorService/Estimate", estimate_alpha, "", is_checked=False),
)


_TOKENS = "neocloud.billing.v1.TokenPriceService"


async def list_token_prices(call: Call, request: ListTokenPricesRequest) -> ListTokenPricesResponse:
    prices, terms_of = _token_prices(call)
    today, answer = call.dependencies.clock.now().date(), ListResponse(currency=prices.currency)
    for model in priced_models(prices):
        terms = terms_of(model, today)
        if terms.is_priced:
            answer.items.add(
                model=model,
                input=terms.input,
                cached_input=terms.cached_input,
                output=terms.output,
                context_length=terms.context_length,
                license=terms.license,
                tokens_per_minute=terms.tokens_per_minute,
            )
    return answer


async def estimate_tokens(call: Call, request: EstimateTokensRequest) -> EstimateTokensResponse:
    prices, terms_of = _token_prices(call)
    terms = terms_of(request.model, call.dependencies.clock.now().date())
    if not terms.is_priced:
        known = ", ".join(priced_models(prices)) or "none"
        why = f"{request.model!r} has no price of tokens; there are prices for {known}"
        raise contract.bad_field("model", why)
    fresh = request.input_tokens - request.cached_input_tokens
    if fresh < 0:
        raise contract.bad_field("cached_input_tokens", "is more than input_tokens, which include it")
    requests = request.requests or 1
    rates = {INPUT: terms.input, CACHED_INPUT: terms.cached_input, OUTPUT: terms.output}
    counts = {INPUT: fresh, CACHED_INPUT: request.cached_input_tokens, OUTPUT: request.output_tokens}
    answer, total = EstimateResponse(currency=prices.currency), Fraction(0)
    for kind in TOKEN_KINDS:
        tokens = counts[kind] * requests
        cost = Fraction(Decimal(rates[kind])) * tokens / Unit.MILLION_TOKENS.parts
        total += cost
        sku = token_sku(request.model, kind)
        answer.items.add(sku=sku, tokens=tokens, unit_price=rates[kind], cost=exact(cost))
    answer.cost, answer.cost_per_request = exact(total), exact(total / requests)
    return answer


def _token_prices(call: Call) -> tuple[PriceList, TokenPrices]:
    prices = price_list(call.dependencies.provided)
    return prices, token_prices(prices)


_TOKEN_METHODS = (
    Method(f"{_TOKENS}/List", list_token_prices, ""),
    Method(f"{_TOKENS}/Estimate", estimate_tokens, ""),
)

METHODS = (*_RESOURCE_METHODS, *_TOKEN_METHODS)
