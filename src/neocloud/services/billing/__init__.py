"""Billing: what was used, and what it costs."""

from neocloud.core.service import Service
from neocloud.services.billing.api import METHODS
from neocloud.services.billing.resources import METERS, PRICES
from neocloud.services.billing.rules.price_list import PriceListError, load_price_list

SERVICE = Service(name="billing", methods=METHODS)

__all__ = ["METERS", "PRICES", "SERVICE", "PriceListError", "load_price_list"]
