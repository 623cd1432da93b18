"""The part of a budget that is computed when it is read: what is spent of it, from the gateway's ledger."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from neocloud.core.registry import ServiceRegistry
from neocloud.services.inference.resources import MonthlySpending


def budget_view(budget: Any, now: datetime, provided: ServiceRegistry) -> None:
    spending = provided.find(MonthlySpending)
    spent = spending(budget.metadata.parent_id, now) if spending else Decimal(0)
    budget.status.spent = f"{spent:f}"
