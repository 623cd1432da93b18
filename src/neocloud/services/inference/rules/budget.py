"""What is legal for a budget. What it does is the gateway's: it sets aside before it sends, settles after."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.neocloud.inference.v1 import BudgetStatus

BudgetState = BudgetStatus.State


class BudgetRules(Rules):
    def defaults(self, resource: Any) -> None:
        resource.status.state = BudgetState.Value("ACTIVE")

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"inference.budget.count": 1}

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        """A limit of nothing is legal: it stops all that costs something."""
        if old is None and not new.metadata.name:
            yield Violation("metadata.name", "a budget needs a name, by which people change and delete it")
