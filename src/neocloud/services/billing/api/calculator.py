"""CalculatorService, in both its versions: the cost of a resource before it is created.

Any signed-in subject may call it: answers follow from the price list alone, not from anyone's resources.
"""

from collections.abc import Iterable, Sequence
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
from neocloud.services.billing.rules.estimate import (
    SPANS,
    USUAL_SPANS,
    NoEstimate,
    SkuCost,
    costs,
    exact,
    rounded_up,
    units,
)
from neocloud.services.billing.rules.price_list import PriceList, price_list

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
METHODS = (
    Method(f"{_V1}.CalculatorService/EstimateBatch", estimate_batch, ""),
    Method(f"{_V1ALPHA1}.CalculatorService/EstimateBatch", estimate_batch_alpha, "", is_checked=False),
    Method(f"{_V1ALPHA1}.CalculatorService/Estimate", estimate_alpha, "", is_checked=False),
)
