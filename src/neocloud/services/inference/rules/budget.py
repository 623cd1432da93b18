"""The rules of a budget, and how much of it is spent. The gateway enforces it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.registry import ServiceRegistry
from neocloud.messages.neocloud.inference.v1 import Budget, BudgetStatus
from neocloud.services.inference.public import MonthlySpending

BudgetState = BudgetStatus.State


class BudgetRules(Rules[Budget]):
    def defaults(self, resource: Budget) -> None:
        resource.status.state = BudgetState.Value("ACTIVE")

    def quota_demand(self, resource: Budget) -> Mapping[str, int]:
        return {"inference.budget.count": 1}

    def violations(self, new: Budget, old: Budget | None, reader: ResourceReader) -> Iterable[Violation]:
        """A limit of 0 is legal: it stops all requests that cost something."""
        if old is None and not new.metadata.name:
            yield Violation("metadata.name", "is required: a budget is changed and deleted by its name")


def budget_view(budget: Budget, now: datetime, provided: ServiceRegistry) -> None:
    """Set what was spent of the budget in this month, from the gateway's ledger."""
    spending = provided.find(MonthlySpending)
    spent = spending(budget.metadata.parent_id, now) if spending else Decimal(0)
    budget.status.spent = f"{spent:f}"
