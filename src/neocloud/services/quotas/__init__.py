"""Quotas: limits and usage of tenants and projects."""

from collections.abc import Iterable

from neocloud.core.service import Service
from neocloud.services.quotas.api import METHODS
from neocloud.services.quotas.ledger import Ledger
from neocloud.services.quotas.rules import QuotaFileError, Quotas, load_quotas

SERVICE = Service(name="quotas", methods=METHODS)


def ledger(services: Iterable[Service], quotas: Quotas) -> Ledger:
    """Return the ledger over the kinds of these services."""
    return Ledger({kind.message: kind.rules for service in services for kind in service.kinds}, quotas)


__all__ = ["SERVICE", "Ledger", "QuotaFileError", "Quotas", "ledger", "load_quotas"]
