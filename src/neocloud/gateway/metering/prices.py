"""What tokens cost. Money is whole numbers inside and Decimal at the borders: nothing is ever rounded.

A price has at most eight decimals of a dollar for a million tokens, so one token costs a whole number of
1e-14 dollars.
"""

from decimal import Decimal
from typing import Any, NamedTuple

from neocloud.gateway.metering.usage import TokenUsage

_TOKEN_DECIMALS = 14
_PRICE_DECIMALS = 8


class Price(NamedTuple):
    """Of one token, in 1e-14 dollars."""

    input: int
    cached_input: int
    output: int

    def cost(self, usage: TokenUsage) -> int:
        fresh = usage.input - usage.cached_input
        return fresh * self.input + usage.cached_input * self.cached_input + usage.output * self.output

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """What a request may cost at worst: none of its input in the cache, unless that is dearer."""
        return input_tokens * max(self.input, self.cached_input) + output_tokens * self.output


FREE = Price(0, 0, 0)


def price_of(message: Any) -> Price | None:
    """That of an inference.v1.TokenPrice; None when it says nothing. A part that it leaves out costs nothing,
    but cached input costs as much as other input."""
    if not (message.input or message.output):
        return None
    return Price(
        per_token(message.input), per_token(message.cached_input or message.input), per_token(message.output)
    )


def per_token(price: str) -> int:
    """From dollars for a million tokens."""
    return int(Decimal(price or 0).scaleb(_PRICE_DECIMALS))


def per_million(price: int) -> Decimal:
    """Dollars for a million tokens, with no more noughts than it needs."""
    return _plain(Decimal(price).scaleb(-_PRICE_DECIMALS))


def from_dollars(amount: str) -> int:
    return int(Decimal(amount).scaleb(_TOKEN_DECIMALS))


def to_dollars(amount: int) -> Decimal:
    return _plain(Decimal(amount).scaleb(-_TOKEN_DECIMALS))


def _plain(amount: Decimal) -> Decimal:
    short = amount.normalize()
    return short if int(short.as_tuple().exponent) <= -2 else amount.quantize(Decimal("0.01"))
