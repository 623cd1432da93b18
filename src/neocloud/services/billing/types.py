"""The resources of billing: the pricing policy, its states, and the SKUs of tokens; the prices of tokens
for other services. Pure.
"""

from dataclasses import dataclass
from datetime import date
from typing import Protocol

from neocloud.messages.nebius.billing.v1 import PricingPolicyStatus

PRICING_POLICY = "nebius.billing.v1.PricingPolicy"
PRICING_POLICY_ID_PREFIX = "pricingpolicy"
REPORT_PERMISSION = "billing.reports.get"
PricingPolicyState = PricingPolicyStatus.State
SchedulingState = PricingPolicyStatus.SchedulingState


INPUT, CACHED_INPUT, OUTPUT = "input", "cached-input", "output"
TOKEN_KINDS = (INPUT, CACHED_INPUT, OUTPUT)
"""Input that was found in the model server's cache counts only as the second kind."""


def token_sku(model: str, kind: str) -> str:
    return f"tokens.{model}.{kind}"


@dataclass(frozen=True)
class TokenTerms:
    """The terms of a model's tokens."""

    input: str = ""
    """US dollars for a million tokens, as a decimal; "" when the model has no price."""
    cached_input: str = ""
    output: str = ""
    tokens_per_minute: int = 0
    """For each tenant; 0: no limit."""
    requests_per_minute: int = 0
    context_length: int = 0
    """Length that its makers state; 0 for a model that is not in the catalogue."""
    license: str = ""
    name: str = ""
    """The name in the catalogue; "" when it is not there."""

    @property
    def is_priced(self) -> bool:
        return bool(self.input and self.output)


class TokenPrices(Protocol):
    def __call__(self, name: str, day: date, /) -> TokenTerms:
        """Return the terms of a model on a day (UTC), by any of its names (with "-fast" for that flavour)."""
        ...
