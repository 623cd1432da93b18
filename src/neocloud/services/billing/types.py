"""The resources of billing: the pricing policy, its states, and the SKUs of tokens. Pure."""

from neocloud.messages.nebius.billing.v1 import PricingPolicyStatus

PRICING_POLICY = "nebius.billing.v1.PricingPolicy"
PRICING_POLICY_ID_PREFIX = "pricingpolicy"
PricingPolicyState = PricingPolicyStatus.State
SchedulingState = PricingPolicyStatus.SchedulingState


INPUT, CACHED_INPUT, OUTPUT = "input", "cached-input", "output"
TOKEN_KINDS = (INPUT, CACHED_INPUT, OUTPUT)
"""Input that was found in the model server's cache counts only as the second kind."""


def token_sku(model: str, kind: str) -> str:
    return f"tokens.{model}.{kind}"
