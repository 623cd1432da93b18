"""What a caller may do: see usage and bills, ask what something would cost, say what it may cost."""

from neocloud.services.billing.api import calculator, tco, token_prices, usage
from neocloud.services.billing.api.usage import get_report, list_usage

METHODS = (*usage.METHODS, *calculator.METHODS, *tco.METHODS, *token_prices.METHODS)

__all__ = ["METHODS", "get_report", "list_usage"]
