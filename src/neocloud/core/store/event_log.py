# pyright: strict
"""Logs of events that are only appended: what happened to things that are no resources, such as nodes.

The events of a log are numbered from 1 without gaps, in the order in which they were written. A reader that
keeps the number of the last event that it knows misses none and gets none twice. Nothing changes or removes
an event. A log outlives the resource that it is named after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class LogEvent:
    """One event of a log; the store does not read its body."""

    subject: str
    """What it is about, e.g. a node."""
    at: datetime
    body: bytes
    position: int = 0
    """Its number in the log, given when it is appended."""


class EventLogs(Protocol):
    """The part of a transaction that is about logs of events."""

    def append_event(self, log: str, event: LogEvent) -> int:
        """Append to the log and return the number of the event."""
        ...

    def events(
        self, log: str, *, subject: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[LogEvent]:
        """The events with numbers above `after`, in order, at most `limit`; of one subject if it is given."""
        ...
