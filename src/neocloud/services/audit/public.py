"""The interface of the audit log for other services."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Protocol

LIST_PERMISSION = "audit.events.list"


class AuditLog(Protocol):
    def lines(self, parent_id: str, start: datetime, end: datetime, /) -> AsyncIterator[str]:
        """Yield the events of a tenant or project as lines of JSON, oldest first. Raises ApiError where the
        events of that time are not kept."""
        ...
