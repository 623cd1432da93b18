"""Logs of events that are only appended: what happened to things that are no resources, such as nodes.

The events of a log are numbered from 1 without gaps, in the order in which they were written. A reader that
keeps the number of the last event that it knows misses none and gets none twice. Nothing changes or removes
a single event. A log outlives the resource that it is named after.

Old events can be moved into an archive, where they take a fraction of the room and longer to read. Readers
get them like all others. A snapshot is what a reader has made of a log so far: its next start begins there.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class DamagedArchive(Exception):
    """An archive of events cannot be read; the message says of which log and events."""


@dataclass(frozen=True)
class LogEvent:
    """One event of a log; the store does not read its body."""

    subject: str
    """The subject of the event, e.g. a node."""
    at: datetime
    body: bytes
    position: int = 0
    """Its number in the log, given when it is appended."""


@dataclass(frozen=True)
class Snapshot:
    position: int
    """Number of the last event in it."""
    version: str
    """Version of the code that made it: another one cannot use it."""
    body: bytes


@dataclass(frozen=True)
class Archive:
    """Events that follow each other in a log, compressed."""

    first: int
    last: int
    body: bytes

    @classmethod
    def of(cls, events: Sequence[LogEvent]) -> "Archive":
        rows = [
            [each.subject, (each.at - _EPOCH) // _MICROSECOND, each.body.decode("latin-1")] for each in events
        ]
        body = zlib.compress(json.dumps(rows, separators=(",", ":")).encode())
        return cls(events[0].position, events[-1].position, body)

    def __str__(self) -> str:
        return f"the archive of events {self.first} to {self.last}"

    def events(self) -> list[LogEvent]:
        """Raises DamagedArchive."""
        try:
            rows = json.loads(zlib.decompress(self.body))
            found = [
                LogEvent(subject, _EPOCH + at * _MICROSECOND, body.encode("latin-1"), position)
                for position, (subject, at, body) in enumerate(rows, self.first)
            ]
        except (zlib.error, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise DamagedArchive(f"{self}: {error}") from error
        if len(found) != self.last - self.first + 1:
            raise DamagedArchive(f"{self} has {len(found)} of them")
        return found


class EventLogs(Protocol):
    """The part of a transaction that is about logs of events."""

    def append_event(self, log: str, event: LogEvent) -> int:
        """Append to the log and return the number of the event."""
        ...

    def events(
        self, log: str, *, subject: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[LogEvent]:
        """The events with numbers above `after`, in order, at most `limit`; of one subject if it is given.
        Raises StoreError for an archive that cannot be read."""
        ...

    def event_log_after(self, log: str) -> str | None:
        """The name of the next log in the order of names."""
        ...

    def oldest_events(self, log: str, before: datetime, limit: int) -> Sequence[LogEvent]:
        """The oldest events that are in no archive, up to the first that is not older than `before`; at most
        `limit`, and never the last event of the log."""
        ...

    def archive_events(self, log: str, archive: Archive) -> None:
        """Put the archive in the place of its events. Raises StaleVersion unless these are the oldest events
        that are in no archive, and others come after them."""
        ...

    def put_snapshot(self, log: str, snapshot: Snapshot) -> None:
        """In place of the one that is there."""
        ...

    def snapshot(self, log: str) -> Snapshot | None: ...

    def forget_log(self, log: str) -> None:
        """Remove the log with its archives and its snapshot. It must not be appended to again."""
        ...
