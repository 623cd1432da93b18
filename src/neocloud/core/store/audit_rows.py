"""Audit events in a transaction: written once, read by tenant and time, forgotten when they are old."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, false, func, insert, not_, or_, select, true, tuple_

from neocloud.core.store.audit_query import AllOf, AnyOf, AuditEvent, AuditQuery, Condition, Is, Not, Test
from neocloud.core.store.protocol import Page
from neocloud.core.store.rows import audit_from, audit_values, to_micros
from neocloud.core.store.session import Session
from neocloud.core.store.tables import audit

_c = audit.c
_INSERT = insert(audit).inline()


class AuditRows(Session):
    def audit(self, event: AuditEvent) -> None:
        self._do(_INSERT, audit_values(event))

    def find_audit(self, query: AuditQuery, page: Page) -> tuple[Sequence[AuditEvent], str]:
        statement = select(audit).where(_c.tenant_id == query.tenant_id, self._sql(query.condition))
        if query.start is not None:
            statement = statement.where(_c.at >= to_micros(query.start))
        if query.end is not None:
            statement = statement.where(_c.at < to_micros(query.end))
        if page.after:
            place, last = tuple_(_c.at, _c.seq), tuple(int(part) for part in page.after.split(":"))
            statement = statement.where(place > last if query.is_ascending else place < last)
        order = (_c.at, _c.seq) if query.is_ascending else (_c.at.desc(), _c.seq.desc())
        rows = self._all(statement.order_by(*order).limit(page.size + 1))
        found = rows[: page.size]
        has_more = len(rows) > page.size
        return [audit_from(row) for row in found], f"{found[-1].at}:{found[-1].seq}" if has_more else ""

    def forget_audit(self, before: datetime, limit: int) -> int:
        oldest = select(_c.seq).where(_c.at < to_micros(before)).order_by(_c.at).limit(limit)
        return self._do(delete(audit).where(_c.seq.in_(oldest.scalar_subquery())), {})

    def _sql(self, condition: Condition) -> ColumnElement[bool]:
        match condition:
            case Is(column, Test.EQUALS, value):
                return _c[column] == value
            case Is(column, Test.CONTAINS, value):
                # Not LIKE: it takes upper and lower case for the same on one of the databases.
                place: Any = func.instr if self._dialect == "sqlite" else func.strpos
                return place(_c[column], value) > 0
            case AllOf(parts):
                return and_(true(), *(self._sql(part) for part in parts))
            case AnyOf(parts):
                return or_(false(), *(self._sql(part) for part in parts))
            case Not(part):
                return not_(self._sql(part))
        raise TypeError(f"{condition!r} is no condition.")
