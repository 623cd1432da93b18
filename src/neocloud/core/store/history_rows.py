"""The history of resources in a transaction: read, measured, and forgotten where it was replaced long ago."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, bindparam, case, delete, exists, func, or_, select

from neocloud.core.store.protocol import HistoryEntry, HistorySizes, Page
from neocloud.core.store.rows import history_from, to_micros
from neocloud.core.store.session import Session, chosen
from neocloud.core.store.tables import history
from neocloud.core.store.vault import FORMAT, SEALED_BYTES

_c = history.c
_HISTORY = select(history).order_by(_c.at, _c.seq)
_OF_KINDS = _c.kind.in_(bindparam("kinds", expanding=True))
_BEFORE = _c.at < bindparam("until")
_LAST = (
    select(history).where(_c.resource_id == bindparam("id")).order_by(_c.at.desc(), _c.seq.desc()).limit(1)
)
_IS_SEALED = func.substr(_c.spec, 1, 1, type_=LargeBinary) == FORMAT
_SPEC_BYTES = func.length(_c.spec) - case((_IS_SEALED, SEALED_BYTES), else_=0)
_SIZES = select(
    _c.parent_id,
    func.count().label("entries"),
    func.sum(_SPEC_BYTES + func.length(_c.labels)).label("size"),
).group_by(_c.parent_id)
_PAGE = (
    select(_c.seq, _c.at)
    .where(_c.seq > bindparam("after", type_=_c.seq.type))
    .order_by(_c.seq)
    .limit(bindparam("count"))
)
_later, _child = history.alias(), history.alias()


class HistoryRows(Session):
    def history(
        self,
        *,
        kinds: Sequence[str] | None = None,
        parent_id: str | None = None,
        resource_id: str | None = None,
        until: datetime | None = None,
    ) -> Sequence[HistoryEntry]:
        statement, values = chosen(_HISTORY, {"parent_id": parent_id, "resource_id": resource_id})
        if kinds is not None:
            statement, values["kinds"] = statement.where(_OF_KINDS), list(kinds)
        if until is not None:
            statement, values["until"] = statement.where(_BEFORE), to_micros(until)
        return [history_from(row, self._vault) for row in self._all(statement, values)]

    def last_entry(self, resource_id: str) -> HistoryEntry | None:
        row = self._one(_LAST, {"id": resource_id})
        return None if row is None else history_from(row, self._vault)

    def history_sizes(self) -> HistorySizes:
        return _sizes(self._all(_SIZES))

    def forget_history(
        self, before: datetime, page: Page, *, keep: Sequence[str] = ()
    ) -> tuple[HistorySizes, str]:
        after = int(page.after or 0)
        rows = self._all(_PAGE, {"after": after, "count": page.size})
        if not rows:
            return {}, ""
        limit = to_micros(before)
        is_on_page = _c.seq.between(after + 1, rows[-1].seq)
        is_replaced = is_on_page & (_c.at < limit) & _c.kind.not_in(keep) & _is_replaced(limit)
        sizes = _sizes(self._all(_SIZES.where(is_replaced)))
        if sizes:
            self._do(delete(history).where(is_replaced), {})
        is_last = len(rows) < page.size or rows[-1].at >= limit
        return sizes, "" if is_last else str(rows[-1].seq)


def _is_replaced(limit: int) -> ColumnElement[bool]:
    """By an entry that was written later and before the limit, or as the last one of a resource that is gone.

    Rows are numbered in the order in which they are written, whatever the clock said. The last entry of a
    parent that is gone says where its children lay.
    """
    is_end = _c.is_deleted & ~exists().where(_child.c.parent_id == _c.resource_id)
    later = exists().where(_later.c.resource_id == _c.resource_id, _later.c.seq > _c.seq, _later.c.at < limit)
    return or_(is_end, later)


def _sizes(rows: Any) -> HistorySizes:
    return {row.parent_id: (row.entries, int(row.size)) for row in rows}
