"""Marks in a transaction: a number in a space, under a name, until a time."""

from datetime import datetime

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from neocloud.core.store.protocol import Mark
from neocloud.core.store.rows import from_micros, to_micros
from neocloud.core.store.session import Session
from neocloud.core.store.tables import marks

_c = marks.c
_FOUND = select(_c.amount, _c.until).where(
    _c.space == bindparam("space"), _c.name == bindparam("name"), _c.until > bindparam("now")
)
_MADE = {"sqlite": sqlite.insert(marks), "postgresql": postgresql.insert(marks)}
_PUT = {
    name: made.on_conflict_do_update(
        index_elements=["space", "name"],
        set_={"amount": made.excluded.amount, "until": made.excluded.until},
    )
    for name, made in _MADE.items()
}
_REMOVE = delete(marks).where(_c.space == bindparam("space"), _c.name == bindparam("name"))
_COUNT = select(func.count()).select_from(marks).where(_c.space == bindparam("space"))
_OVER = delete(marks).where(_c.space == bindparam("space"), _c.until <= bindparam("now"))
_ALL_OVER = delete(marks).where(_c.until <= bindparam("now"))
_OLDEST = (
    select(_c.name)
    .where(_c.space == bindparam("space"), _c.amount < bindparam("below"))
    .order_by(_c.until)
    .limit(bindparam("limit"))
)
_REMOVE_OLDEST = delete(marks).where(_c.space == bindparam("space"), _c.name.in_(_OLDEST))


class MarkRows(Session):
    def mark(self, space: str, name: str, now: datetime) -> Mark | None:
        row = self._one(_FOUND, {"space": space, "name": name, "now": to_micros(now)})
        return None if row is None else Mark(row.amount, from_micros(row.until))

    def put_mark(self, space: str, name: str, mark: Mark) -> None:
        values = {"space": space, "name": name, "amount": mark.amount, "until": to_micros(mark.until)}
        self._do(_PUT[self._dialect], values)

    def remove_mark(self, space: str, name: str) -> None:
        self._do(_REMOVE, {"space": space, "name": name})

    def count_marks(self, space: str) -> int:
        return self._one(_COUNT, {"space": space})[0]

    def forget_ended_marks(self, now: datetime) -> int:
        return self._do(_ALL_OVER, {"now": to_micros(now)})

    def forget_marks(self, space: str, now: datetime, *, below: int = 0, limit: int = 0) -> int:
        gone = self._do(_OVER, {"space": space, "now": to_micros(now)})
        if limit:
            gone += self._do(_REMOVE_OLDEST, {"space": space, "below": below, "limit": limit})
        return gone
