"""Custom verbs of billing: usage and bills, estimates, token prices, cost of ownership."""

from neocloud.services.billing.api import estimates, tco, usage
from neocloud.services.billing.api.usage import get_report, list_usage

METHODS = (*usage.METHODS, *estimates.METHODS, *tco.METHODS)

__all__ = ["METHODS", "get_report", "list_usage"]
