"""Which messages this brick answers with, and the names under which the application hands it its parts."""

from neocloud.core import contract

ListUsageResponse = contract.message("neocloud.billing.v1.ListUsageResponse")
UsageRecordMessage = contract.message("neocloud.billing.v1.UsageRecord")
Report = contract.message("neocloud.billing.v1.Report")
ReportLine = contract.message("neocloud.billing.v1.ReportLine")

PRICING_POLICY = "nebius.billing.v1.PricingPolicy"
PRICING_POLICY_ID_PREFIX = "pricingpolicy"
PricingPolicyState = contract.enum("nebius.billing.v1.PricingPolicyStatus.State")
SchedulingState = contract.enum("nebius.billing.v1.PricingPolicyStatus.SchedulingState")
PricingPolicy = contract.message(PRICING_POLICY)


def policy_space(policy_id: str) -> str:
    """Whoever has a claim in this space names the policy: instances, each with its own id as the value."""
    return f"{policy_id}/instances"


METERS = "billing.meters"
"""Key in Dependencies.extras: the meters of all bricks."""
PRICES = "billing.prices"
"""Key in Dependencies.extras: the PriceList to charge by; the one that comes along when it is missing."""
