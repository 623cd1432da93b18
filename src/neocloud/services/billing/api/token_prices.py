"""TokenPriceService: the prices of models by the token. Any signed-in subject may call it."""

from decimal import Decimal
from fractions import Fraction

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.billing.v1 import (
    EstimateTokensRequest,
    EstimateTokensResponse,
    ListTokenPricesRequest,
    ListTokenPricesResponse,
)
from neocloud.messages.neocloud.billing.v1 import EstimateTokensResponse as EstimateResponse
from neocloud.messages.neocloud.billing.v1 import ListTokenPricesResponse as ListResponse
from neocloud.services.billing.public import TokenPrices
from neocloud.services.billing.rules.catalogue import priced_models, token_prices
from neocloud.services.billing.rules.estimate import exact
from neocloud.services.billing.rules.price_list import PriceList, Unit, price_list
from neocloud.services.billing.types import CACHED_INPUT, INPUT, OUTPUT, TOKEN_KINDS, token_sku

_SERVICE = "neocloud.billing.v1.TokenPriceService"


async def list_token_prices(call: Call, request: ListTokenPricesRequest) -> ListTokenPricesResponse:
    prices, terms_of = _prices(call)
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
    prices, terms_of = _prices(call)
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


def _prices(call: Call) -> tuple[PriceList, TokenPrices]:
    prices = price_list(call.dependencies.provided)
    return prices, token_prices(prices)


METHODS = (
    Method(f"{_SERVICE}/List", list_token_prices, ""),
    Method(f"{_SERVICE}/Estimate", estimate_tokens, ""),
)
