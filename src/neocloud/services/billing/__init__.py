"""Billing: usage, its cost, estimates, and pricing policies."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.billing.api import METHODS, StoreFocusBills
from neocloud.services.billing.api.charges import StoreResourceCharges
from neocloud.services.billing.public import FocusBills, ResourceCharges
from neocloud.services.billing.rules.catalogue import token_prices
from neocloud.services.billing.rules.price_list import PriceList, PriceListError, load_price_list, price_list
from neocloud.services.billing.rules.pricing_policy import PricingPolicyRules, pricing_policy_view
from neocloud.services.billing.types import PRICING_POLICY, PRICING_POLICY_ID_PREFIX, TokenPrices

KINDS = (
    Kind(
        message=PRICING_POLICY,
        rpc="nebius.billing.v1.PricingPolicyService",
        id_prefix=PRICING_POLICY_ID_PREFIX,
        permission="billing.pricingPolicies",
        parent_kinds=("nebius.iam.v1.Container",),
        rules=PricingPolicyRules(),
        initial_state="STATE_ACTIVE",
        view=pricing_policy_view,
    ),
)

SERVICE = Service(
    name="billing",
    kinds=KINDS,
    methods=METHODS,
    provides={
        FocusBills: StoreFocusBills,
        ResourceCharges: StoreResourceCharges,
        TokenPrices: lambda dependencies: token_prices(price_list(dependencies.provided)),
    },
)

__all__ = ["SERVICE", "PriceList", "PriceListError", "load_price_list"]
