"""What this brick's handlers and reconcilers find in `Dependencies.extras`, and what others hand in there."""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from neocloud.core.clock import Clock
from neocloud.gateway_key import GATEWAY_KEY, load_or_make_gateway_key
from neocloud.services.inference.resources import MODEL_FOLDERS, ModelFolders
from neocloud.services.inference.route_changes import RouteChanges
from neocloud.services.inference.traffic import TrafficBoard

TRAFFIC = "inference.traffic"
"""A TrafficBoard."""
ROUTE_CHANGES = "inference.route-changes"
"""A RouteChanges."""
MONTHLY_SPENDING = "inference.monthly-spending"
"""A MonthlySpending. Missing: nothing was spent."""

MonthlySpending = Callable[[str, datetime], Decimal]
"""(project id, a moment) -> US dollars spent on tokens in that moment's calendar month, UTC."""


def extras(clock: Clock, settings: Any) -> dict[str, Any]:
    return {
        TRAFFIC: TrafficBoard(clock),
        ROUTE_CHANGES: RouteChanges(clock),
        MODEL_FOLDERS: ModelFolders(settings.home / "models", settings.model_folders),
        GATEWAY_KEY: load_or_make_gateway_key(settings.home),
    }
