"""Billing: what was used, what it costs, and the most that it may cost."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.billing.api import METHODS
from neocloud.services.billing.resources import PRICING_POLICY, PRICING_POLICY_ID_PREFIX, TokenPrices
from neocloud.services.billing.rules.catalogue import token_prices
from neocloud.services.billing.rules.price_list import PriceList, PriceListError, load_price_list, price_list
from neocloud.services.billing.rules.pricing_policy import PricingPolicyRules
from neocloud.services.billing.views import pricing_policy_view

PRICING_POLICIES = Kind(
    message=PRICING_POLICY,
    rpc="nebius.billing.v1.PricingPolicyService",
    id_prefix=PRICING_POLICY_ID_PREFIX,
    permission="billing.pricingPolicies",
    parent_kinds=("nebius.iam.v1.Container",),
    rules=PricingPolicyRules(),
    initial_state="STATE_ACTIVE",
    view=pricing_policy_view,
)

SERVICE = Service(
    name="billing",
    kinds=(PRICING_POLICIES,),
    methods=METHODS,
    provides={TokenPrices: lambda dependencies: token_prices(price_list(dependencies.provided))},
)

__all__ = ["SERVICE", "PriceList", "PriceListError", "load_price_list"]
