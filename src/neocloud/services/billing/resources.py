"""Messages and resource types of billing, and the prices of tokens that it offers to other services."""

from dataclasses import dataclass
from datetime import date
from typing import Protocol

from neocloud.messages.nebius.billing.v1 import PricingPolicyStatus

PRICING_POLICY = "nebius.billing.v1.PricingPolicy"
PRICING_POLICY_ID_PREFIX = "pricingpolicy"
PricingPolicyState = PricingPolicyStatus.State
SchedulingState = PricingPolicyStatus.SchedulingState


INPUT, CACHED_INPUT, OUTPUT = "input", "cached-input", "output"
TOKEN_KINDS = (INPUT, CACHED_INPUT, OUTPUT)
"""Input that was found in the engine's cache is only of the second kind."""


def token_sku(model: str, kind: str) -> str:
    return f"tokens.{model}.{kind}"


@dataclass(frozen=True)
class TokenTerms:
    """On which terms a model's tokens are sold."""

    input: str = ""
    """US dollars for a million tokens, as a decimal; "" when the model has no price."""
    cached_input: str = ""
    output: str = ""
    tokens_per_minute: int = 0
    """Of one tenant. 0: no limit."""
    requests_per_minute: int = 0
    context_length: int = 0
    """As its makers say; 0 for a model that the catalogue does not know."""
    license: str = ""
    name: str = ""
    """What the catalogue calls it; "" when it does not know it."""

    @property
    def is_priced(self) -> bool:
        return bool(self.input and self.output)


class TokenPrices(Protocol):
    def __call__(self, name: str, day: date, /) -> TokenTerms:
        """Return the terms of a model by a name of it ("-fast" after it in that flavour), on a day (UTC)."""
        ...
