"""Logs of events in the database, numbered by their primary key: of two writers that race for a number, one
gets it and the other's transaction fails."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, delete, func, insert, select

from neocloud.core.store.event_log import Archive, DamagedArchive, LogEvent, Snapshot
from neocloud.core.store.protocol import StaleVersion, StoreError
from neocloud.core.store.rows import Session, chosen, from_micros, insert_new, to_micros
from neocloud.core.store.tables import event_archives, event_snapshots, events

_INSERT = insert_new(events)
_LAST = select(func.max(events.c.position)).where(events.c.log == bindparam("log"))
_EVENTS = (
    select(events)
    .where(events.c.position > bindparam("after"))
    .order_by(events.c.position)
    .limit(bindparam("limit"))
)
_REMOVE = delete(events).where(
    events.c.log == bindparam("of"), events.c.position.between(bindparam("first"), bindparam("last"))
)
_FIRST = select(func.min(events.c.position)).where(events.c.log == bindparam("log"))
_NEXT_LOG = select(func.min(events.c.log)).where(events.c.log > bindparam("log"))
_ARCHIVE = insert(event_archives).inline()
_ARCHIVED = select(func.max(event_archives.c.last)).where(event_archives.c.log == bindparam("log"))
_NEXT_ARCHIVE = (
    select(event_archives.c.first, event_archives.c.last, event_archives.c.body)
    .where(event_archives.c.log == bindparam("log"), event_archives.c.last > bindparam("after"))
    .order_by(event_archives.c.last)
    .limit(1)
)
_SNAPSHOT = select(event_snapshots).where(event_snapshots.c.log == bindparam("log"))
_INSERT_SNAPSHOT = insert(event_snapshots).inline()
_FORGET = [
    delete(table).where(table.c.log == bindparam("of")) for table in (events, event_archives, event_snapshots)
]
_FORGET_SNAPSHOT = _FORGET[-1]


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
        found: list[LogEvent] = []
        while len(found) < limit and (row := self._one(_NEXT_ARCHIVE, {"log": log, "after": after})):
            archive = Archive(row.first, row.last, bytes(row.body))
            try:
                opened = archive.events()
            except DamagedArchive as error:
                raise StoreError(f"{log}: {error}. Restore the database from a backup.") from error
            found += [each for each in opened if each.position > after and subject in (None, each.subject)]
            after = archive.last
        return [*found, *self._live(log, subject, after, limit - len(found))][:limit]

    def _live(self, log: str, subject: str | None, after: int, limit: int) -> Sequence[LogEvent]:
        if limit <= 0:
            return ()
        statement, values = chosen(_EVENTS, {"log": log, "subject": subject})
        rows = self._all(statement, {**values, "after": after, "limit": limit})
        return [LogEvent(row.subject, from_micros(row.at), bytes(row.body), row.position) for row in rows]

    def event_log_after(self, log: str) -> str | None:
        return self._one(_NEXT_LOG, {"log": log})[0]

    def oldest_events(self, log: str, before: datetime, limit: int) -> Sequence[LogEvent]:
        archived = int(self._one(_ARCHIVED, {"log": log})[0] or 0)
        found = self._live(log, None, archived, limit + 1)
        old: list[LogEvent] = []
        for each in found[:-1]:
            if each.at >= before:
                break
            old.append(each)
        return old

    def archive_events(self, log: str, archive: Archive) -> None:
        first, last = self._one(_FIRST, {"log": log})[0], self._one(_LAST, {"log": log})[0]
        if first != archive.first or last is None or last <= archive.last:
            raise StaleVersion(f"Events {archive.first} to {archive.last} of {log} are not its oldest.")
        number = archive.last - archive.first + 1
        if self._do(_REMOVE, {"of": log, "first": archive.first, "last": archive.last}) != number:
            raise StaleVersion(f"Some events {archive.first} to {archive.last} of {log} are archived.")
        values = {"log": log, "first": archive.first, "last": archive.last, "body": archive.body}
        self._do(_ARCHIVE, values)

    def put_snapshot(self, log: str, snapshot: Snapshot) -> None:
        self._do(_FORGET_SNAPSHOT, {"of": log})
        sealed = self._vault.seal(log, _name(snapshot.position, snapshot.version), snapshot.body)
        values = {"log": log, "position": snapshot.position, "version": snapshot.version, "body": sealed}
        self._do(_INSERT_SNAPSHOT, values)

    def snapshot(self, log: str) -> Snapshot | None:
        row = self._one(_SNAPSHOT, {"log": log})
        if row is None:
            return None
        try:
            body = self._vault.open(log, _name(row.position, row.version), bytes(row.body))
        except (StoreError, ValueError):
            return None  # damaged, or of another key: it can be made again
        return Snapshot(row.position, row.version, body)

    def forget_log(self, log: str) -> None:
        for statement in _FORGET:
            self._do(statement, {"of": log})


def _name(position: int, version: str) -> str:
    """Return the name to which a sealed snapshot is bound, beside its log."""
    return f"snapshot {version} {position}"
