"""The interface of billing for other services."""

from datetime import datetime
from typing import Protocol


class FocusBills(Protocol):
    async def __call__(self, parent_id: str, start: datetime, end: datetime, /) -> str:
        """Return the bill of a project or tenant in CSV of FOCUS, with its header. Raises ApiError where the
        usage of that time is not kept."""
        ...
