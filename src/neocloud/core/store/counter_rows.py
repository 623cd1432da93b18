"""Counters in a transaction. Two that count at once are one after the other, on either database."""

from collections.abc import Mapping

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from neocloud.core.store.session import Session
from neocloud.core.store.tables import counters

_c = counters.c
_OF_SCOPE = select(_c.name, _c.amount).where(_c.scope == bindparam("scope"), _c.amount != 0)
_ALL = select(_c.scope, _c.name, _c.amount).where(_c.amount != 0)
_MADE = {"sqlite": sqlite.insert(counters), "postgresql": postgresql.insert(counters)}
_COUNT = {
    name: made.on_conflict_do_update(
        index_elements=["scope", "name"], set_={"amount": _c.amount + made.excluded.amount}
    ).returning(_c.amount)
    for name, made in _MADE.items()
}


class CounterRows(Session):
    def count(self, scope: str, name: str, change: int) -> int:
        row = self._row(_COUNT[self._dialect], {"scope": scope, "name": name, "amount": change})
        assert row is not None, "An insert or update of one row returns that row."
        return row[0]

    def counters(self, scope: str) -> Mapping[str, int]:
        return {row.name: row.amount for row in self._all(_OF_SCOPE, {"scope": scope})}

    def all_counters(self) -> Mapping[tuple[str, str], int]:
        return {(row.scope, row.name): row.amount for row in self._all(_ALL)}
