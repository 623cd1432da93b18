"""TcoService: the monthly cost of owning a cluster, and of a conversation on it.

Every signed-in subject may call it: answers follow from the price list alone, not from anyone's resources.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.billing.v1 import (
    EstimateTcoRequest,
    EstimateTcoResponse,
    ListModelChoicesRequest,
    ListModelChoicesResponse,
    ListTcoParametersRequest,
    ListTcoParametersResponse,
    TcoItem,
)
from neocloud.messages.neocloud.billing.v1 import EstimateTcoResponse as Response
from neocloud.messages.neocloud.billing.v1 import ListModelChoicesResponse as Choices
from neocloud.messages.neocloud.billing.v1 import ListTcoParametersResponse as Parameters
from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, PriceList, price_list
from neocloud.services.billing.tco import figures
from neocloud.services.billing.tco.figures import (
    Conversation,
    Costs,
    Hosted,
    NoPrice,
    Row,
    Throughput,
    break_even,
    cents,
    priced,
    published_cost,
    throughput,
    totals,
)
from neocloud.services.billing.tco.plan import (
    Item,
    Values,
    WrongValue,
    choices,
    items,
    parameters,
    usual_scenarios,
    values,
)

_SERVICE = "neocloud.billing.v1.TcoService"
_MICRO = Decimal("0.000001")
_TENTH = Decimal("0.1")
_INPUT, _OUTPUT = ".input", ".output"
_TOKENS = "tokens."


async def estimate(call: Call, request: EstimateTcoRequest) -> EstimateTcoResponse:
    prices = price_list(call.dependencies.provided)
    day = call.dependencies.clock.now().date()
    try:
        chosen = values((each.name, each.value) for each in request.values)
    except WrongValue as error:
        raise contract.bad_field(f"values[{error.index}]", str(error)) from error
    rows = _rows(chosen, request, prices, day)
    sums = totals(rows)
    answer = Response(
        currency=prices.currency,
        minimum=f"{sums.minimum:f}",
        maximum=f"{sums.maximum:f}",
        exact_minimum=f"{cents(sums.exact_minimum):f}",
        exact_maximum=f"{cents(sums.exact_maximum):f}",
    )
    for row in rows:
        _add_row(answer, row)
    costs = _costs(chosen, sums.maximum, rows)
    answer.monthly_cost = f"{costs.month:f}"
    speeds = _add_serving(answer, request, chosen, costs)
    hosted = _hosted(request, prices, day)
    _add_hosted(answer, hosted, costs, _conversation(chosen))
    found = [*figures.of_rows(rows, sums, chosen), *figures.of_serving(chosen, costs.month)]
    found += [] if request.scenarios else figures.of_published_speeds()
    found += figures.of_hosted(hosted, costs.month, speeds, _conversation(chosen))
    for note in (*found, *figures.of_claims()):
        answer.notes.add(about=note.about, text=note.text)
    return answer


async def list_parameters(call: Call, request: ListTcoParametersRequest) -> ListTcoParametersResponse:
    answer = Parameters()
    for each in parameters():
        answer.items.add(name=each.name, default_value=str(each.default), about=each.about)
    return answer


async def list_model_choices(call: Call, request: ListModelChoicesRequest) -> ListModelChoicesResponse:
    answer = Choices()
    for each in choices():
        answer.items.add(
            question=each.question,
            small_model=each.small_model,
            large_model=each.large_model,
            advice=each.advice,
        )
    return answer


def _rows(chosen: Values, request: EstimateTcoRequest, prices: PriceList, day: date) -> Sequence[Row]:
    own = [_own_item(each, index) for index, each in enumerate(request.items)]
    plan = [_priced(item, prices, day, "values") for item in items(chosen)]
    return [
        *plan,
        *(_priced(item, prices, day, f"items[{index}]") for index, item in enumerate(own)),
    ]


def _own_item(each: TcoItem, index: int) -> Item:
    if each.maximum and each.maximum < each.minimum:
        raise contract.bad_field(
            f"items[{index}].maximum", "is less than the minimum; raise it or leave it out"
        )
    item = Item("Own", each.name, each.minimum, each.maximum or each.minimum)
    if each.WhichOneof("what") == "node":
        return replace(item, platform=each.node.platform, preset=each.node.preset)
    return replace(item, sku=each.storage.sku, gib=each.storage.gibibytes)


def _priced(item: Item, prices: PriceList, day: date, field: str) -> Row:
    try:
        return priced(item, prices, day)
    except NoPrice as error:
        raise contract.bad_field(field, str(error)) from error


def _add_row(answer: EstimateTcoResponse, row: Row) -> None:
    item = row.item
    what = f"{item.platform} {item.preset}" if item.platform else f"{item.sku} {item.gib} GiB"
    answer.rows.add(
        section=item.section,
        name=item.name,
        what=what if row.unit else "",
        minimum_units=item.count,
        maximum_units=item.most,
        unit=row.unit,
        unit_price=f"{row.rate:f}",
        exact_unit_price=f"{row.exact_rate:f}",
        minimum=f"{row.minimum:f}",
        maximum=f"{row.maximum:f}",
        exact_minimum=f"{cents(row.exact_minimum):f}",
        exact_maximum=f"{cents(row.exact_maximum):f}",
    )


def _costs(chosen: Values, maximum: Decimal, rows: Sequence[Row]) -> Costs:
    """Return the costs of a month: as given, or the plan's maximum. The nodes of the first row serve."""
    month = chosen.amount("monthly_cost")
    return Costs(published_cost(maximum) if month is None else month, rows[0].rate * HOURS_PER_MONTH)


def _conversation(chosen: Values) -> Conversation:
    return Conversation(chosen.number("input_tokens"), chosen.number("output_tokens"))


def _add_serving(
    answer: EstimateTcoResponse, request: EstimateTcoRequest, chosen: Values, costs: Costs
) -> Sequence[Throughput]:
    requested = [(each.name, Decimal(each.tokens_per_second)) for each in request.scenarios]
    speeds: list[Throughput] = []
    for name, speed in requested or usual_scenarios():
        reached = throughput(speed, _conversation(chosen))
        speeds.append(reached)
        answer.serving.add(
            scenario=name,
            tokens_per_second=f"{speed:f}",
            tokens_per_day=reached.tokens_per_day,
            conversations_per_day=reached.conversations_per_day,
            cost_per_chat=_money(reached.cost_per_chat(costs.month)),
            cost_per_chat_of_worker=_money(reached.cost_per_chat(costs.worker)),
        )
    return speeds


def _hosted(request: EstimateTcoRequest, prices: PriceList, day: date) -> Sequence[Hosted]:
    if not request.hosted_models:
        return list(_listed(prices, day))
    return [
        Hosted(each.name, Decimal(each.input_price), Decimal(each.output_price))
        for each in request.hosted_models
    ]


def _listed(prices: PriceList, day: date) -> Iterator[Hosted]:
    """Yield the models with prices of tokens in the price list."""
    for name in sorted(prices.skus):
        if name.startswith(_TOKENS) and name.endswith(_INPUT):
            model = name.removeprefix(_TOKENS).removesuffix(_INPUT)
            output = prices.skus.get(f"{_TOKENS}{model}{_OUTPUT}")
            read, generated = prices.skus[name].price_on(day), output.price_on(day) if output else None
            if read is not None and generated is not None:
                yield Hosted(model, read, generated)


def _add_hosted(
    answer: EstimateTcoResponse, hosted: Sequence[Hosted], costs: Costs, chat: Conversation
) -> None:
    for each in hosted:
        row = answer.hosted.add(model=each.name, cost_per_chat=_money(each.cost_per_chat(chat)))
        whole, worker = break_even(costs.month, each, chat), break_even(costs.worker, each, chat)
        if whole is not None and worker is not None:
            row.break_even_conversations_per_day = whole[0]
            row.break_even_tokens_per_second = f"{whole[1].quantize(_TENTH):f}"
            row.break_even_conversations_per_day_of_worker = worker[0]
            row.break_even_tokens_per_second_of_worker = f"{worker[1].quantize(_TENTH):f}"


def _money(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount.quantize(_MICRO):f}"


METHODS = (
    Method(f"{_SERVICE}/Estimate", estimate, ""),
    Method(f"{_SERVICE}/ListParameters", list_parameters, ""),
    Method(f"{_SERVICE}/ListModelChoices", list_model_choices, ""),
)
