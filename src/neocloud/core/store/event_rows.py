# pyright: strict
"""Logs of events in the database, numbered by their primary key: of two writers that race for a number, one
gets it and the other's transaction fails."""

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select

from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import StaleVersion
from neocloud.core.store.rows import Session, chosen, from_micros, insert_new, to_micros
from neocloud.core.store.tables import events

_INSERT = insert_new(events)
_LAST = select(func.max(events.c.position)).where(events.c.log == bindparam("log"))
_EVENTS = (
    select(events)
    .where(events.c.position > bindparam("after"))
    .order_by(events.c.position)
    .limit(bindparam("limit"))
)


class EventLogRows(Session):
    """Implements `EventLogs` for both databases."""

    def append_event(self, log: str, event: LogEvent) -> int:
        last = self._one(_LAST, {"log": log})[0]
        position = int(last or 0) + 1
        place = {"log": log, "position": position, "subject": event.subject}
        values = {**place, "at": to_micros(event.at), "body": event.body}
        if not self._insert_new(_INSERT, values):
            raise StaleVersion(f"Event {position} of {log} was written meanwhile. Repeat the change.")
        return position

    def events(
        self, log: str, *, subject: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[LogEvent]:
        statement, values = chosen(_EVENTS, {"log": log, "subject": subject})
        rows = self._all(statement, {**values, "after": after, "limit": limit})
        return [LogEvent(row.subject, from_micros(row.at), bytes(row.body), row.position) for row in rows]
