"""Custom verbs of billing: usage and bills, estimates, token prices, cost of ownership."""

from neocloud.services.billing.api import calculator, tco, token_prices, usage
from neocloud.services.billing.api.usage import get_report, list_usage

METHODS = (*usage.METHODS, *calculator.METHODS, *tco.METHODS, *token_prices.METHODS)

__all__ = ["METHODS", "get_report", "list_usage"]
