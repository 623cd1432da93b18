# pyright: strict
"""Prices of tokens. Amounts are integers internally and Decimal outside, so nothing is ever rounded.

A price has at most eight decimals of a dollar per million tokens, so a token costs an integer number of 1e-14
dollars.
"""

from decimal import Decimal
from typing import Any, NamedTuple

from neocloud.gateway.metering.usage import TokenUsage

_TOKEN_DECIMALS = 14
_PRICE_DECIMALS = 8


class Price(NamedTuple):
    """Prices of one token, in 1e-14 dollars."""

    input: int
    cached_input: int
    output: int

    def cost(self, usage: TokenUsage) -> int:
        fresh = usage.input - usage.cached_input
        return fresh * self.input + usage.cached_input * self.cached_input + usage.output * self.output

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the highest possible cost of a request."""
        return input_tokens * max(self.input, self.cached_input) + output_tokens * self.output


FREE = Price(0, 0, 0)


def price_of(message: Any) -> Price | None:
    """Return the price of an inference.v1.TokenPrice; None when it is empty.

    A part that is missing costs nothing, but cached input costs as much as other input.
    """
    if not (message.input or message.output):
        return None
    return Price(
        per_token(message.input), per_token(message.cached_input or message.input), per_token(message.output)
    )


def per_token(price: str) -> int:
    """Convert from dollars per million tokens."""
    return int(Decimal(price or 0).scaleb(_PRICE_DECIMALS))


def per_million(price: int) -> Decimal:
    """Return dollars per million tokens, without superfluous zeros."""
    return _plain(Decimal(price).scaleb(-_PRICE_DECIMALS))


def from_dollars(amount: str) -> int:
    return int(Decimal(amount).scaleb(_TOKEN_DECIMALS))


def to_dollars(amount: int) -> Decimal:
    return _plain(Decimal(amount).scaleb(-_TOKEN_DECIMALS))


def _plain(amount: Decimal) -> Decimal:
    short = amount.normalize()
    return short if int(short.as_tuple().exponent) <= -2 else amount.quantize(Decimal("0.01"))
