"""Where replicas run: what the reconciler asks of pods and of batch jobs alike.

A placement starts and stops what it is told and says what it sees. How many there should be, pauses after
failures, adapters and the status are the reconciler's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from neocloud.services.inference.reconcile.scope import Scope


@dataclass(frozen=True)
class Seen:
    """One replica as it is right now."""

    name: str
    is_running: bool
    """Its process is there; False while it waits for a place."""
    is_healthy: bool
    """Its engine says that it is well. It may still need its first question."""
    has_ended: bool
    """Its process is gone and does not come back by itself."""
    is_outdated: bool = False
    """It runs by an older spec."""
    address: str = ""
    """"10.89.3.4:8000"; "" until it is known."""
    started_at: datetime | None = None
    message: str = ""
    job_id: int = 0


class Placement(Protocol):
    async def look(self, scope: Scope) -> Sequence[Seen]:
        """All replicas of the deployment that exist, by whatever name. Raises RetryLater when it cannot be
        said."""
        ...

    async def start(self, scope: Scope, names: Sequence[str]) -> None:
        """Make these exist, by the present spec. May be repeated; what runs by another spec is replaced."""
        ...

    async def stop(self, scope: Scope, names: Sequence[str]) -> None:
        """Make these go; may be repeated. Returns when they are gone, or raises RetryLater."""
        ...

    async def log(self, deployment_id: str, name: str, lines: int) -> str:
        """The last lines that its engine wrote; "" where there are none."""
        ...

    async def clear(self, scope: Scope) -> None:
        """The deployment goes: leave nothing of it."""
        ...

    def adapter_path(self, scope: Scope, adapter_id: str) -> str:
        """Where an engine of this placement finds an adapter that was laid into the deployment's folder."""
        ...
