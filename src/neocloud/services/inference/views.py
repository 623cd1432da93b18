"""What of a budget is worked out when it is read: how much of it is spent, from the gateway's ledger."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from neocloud.services.inference.extras import MONTHLY_SPENDING, MonthlySpending


def budget_view(budget: Any, now: datetime, extras: Mapping[str, Any]) -> None:
    spending: MonthlySpending | None = extras.get(MONTHLY_SPENDING)
    spent = spending(budget.metadata.parent_id, now) if spending else Decimal(0)
    budget.status.spent = f"{spent:f}"
