"""Custom verbs of billing: usage and bills, estimates, token prices, cost of ownership."""

from neocloud.services.billing.api import credits, estimates, focus, report, tco, usage
from neocloud.services.billing.api.focus import StoreFocusBills, get_focus_report
from neocloud.services.billing.api.report import get_report
from neocloud.services.billing.api.usage import list_usage

METHODS = (
    *usage.METHODS,
    *report.METHODS,
    *credits.METHODS,
    *focus.METHODS,
    *estimates.METHODS,
    *tco.METHODS,
)

__all__ = ["METHODS", "StoreFocusBills", "get_focus_report", "get_report", "list_usage"]
