"""Every table but resources, their queue and their reservations, in one database transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from neocloud.core.store.audit_query import AllOf, AnyOf, AuditEvent, AuditQuery, Condition, Is, Not, Test
from neocloud.core.store.protocol import (
    AlreadyExists,
    HistoryEntry,
    HistorySizes,
    IdempotencyKey,
    Mark,
    OperationRow,
    Page,
    StoreError,
)
from neocloud.core.store.rows import (
    Rows,
    Session,
    audit_from,
    audit_values,
    chosen,
    from_micros,
    history_from,
    insert_new,
    key_from,
    key_values,
    operation_from,
    operation_values,
    to_micros,
)
from neocloud.core.store.tables import audit, counters, history, idempotency, marks, operations, secrets
from neocloud.core.store.vault import FORMAT, SEALED_BYTES

_INSERT_OPERATION = insert_new(operations)
_GET_OPERATION = select(operations).where(operations.c.id == bindparam("id"))
_UPDATE_OPERATION = (
    update(operations)
    .where(operations.c.id == bindparam("row_id"))
    .values({c.name: bindparam(c.name) for c in operations.c if c.name not in ("seq", "id")})
)
_OPERATIONS = select(operations).order_by(operations.c.seq.desc())
_UNFINISHED = _OPERATIONS.where(operations.c.code.is_(None))
_INSERT_KEY = insert_new(idempotency)
_GET_KEY = select(idempotency).where(
    idempotency.c.subject == bindparam("subject"),
    idempotency.c.method == bindparam("method"),
    idempotency.c.key == bindparam("key"),
)
_DELETE_OLD_KEYS = delete(idempotency).where(idempotency.c.created_at < bindparam("before"))
_NEWEST_AUDIT = select(audit).order_by(audit.c.seq.desc())
_GET_SECRET = select(secrets.c.value).where(
    secrets.c.resource_id == bindparam("id"), secrets.c.name == bindparam("secret")
)
_DELETE_SECRET = delete(secrets).where(
    secrets.c.resource_id == bindparam("id"), secrets.c.name == bindparam("secret")
)
_INSERT_SECRET = insert(secrets).inline()

_INSERT_AUDIT = insert(audit).inline()

_HISTORY = select(history).order_by(history.c.at, history.c.seq)
_HISTORY_OF_KINDS = history.c.kind.in_(bindparam("kinds", expanding=True))
_HISTORY_BEFORE = history.c.at < bindparam("until")
_LAST_ENTRY = (
    select(history)
    .where(history.c.resource_id == bindparam("id"))
    .order_by(history.c.at.desc(), history.c.seq.desc())
    .limit(1)
)
_IS_SEALED = func.substr(history.c.spec, 1, 1, type_=LargeBinary) == FORMAT
_SPEC_BYTES = func.length(history.c.spec) - case((_IS_SEALED, SEALED_BYTES), else_=0)
_HISTORY_SIZES = select(
    history.c.parent_id,
    func.count().label("entries"),
    func.sum(_SPEC_BYTES + func.length(history.c.labels)).label("size"),
).group_by(history.c.parent_id)
_HISTORY_PAGE = (
    select(history.c.seq, history.c.at)
    .where(history.c.seq > bindparam("after", type_=history.c.seq.type))
    .order_by(history.c.seq)
    .limit(bindparam("count"))
)
_later_entry, _child_entry = history.alias(), history.alias()

_COUNTERS_OF_SCOPE = select(counters.c.name, counters.c.amount).where(
    counters.c.scope == bindparam("scope"), counters.c.amount != 0
)
_ALL_COUNTERS = select(counters.c.scope, counters.c.name, counters.c.amount).where(counters.c.amount != 0)
_INSERT_COUNTER = {"sqlite": sqlite.insert(counters), "postgresql": postgresql.insert(counters)}
_COUNT = {
    name: made.on_conflict_do_update(
        index_elements=["scope", "name"], set_={"amount": counters.c.amount + made.excluded.amount}
    ).returning(counters.c.amount)
    for name, made in _INSERT_COUNTER.items()
}

_GET_MARK = select(marks.c.amount, marks.c.until).where(
    marks.c.space == bindparam("space"), marks.c.name == bindparam("name"), marks.c.until > bindparam("now")
)
_INSERT_MARK = {"sqlite": sqlite.insert(marks), "postgresql": postgresql.insert(marks)}
_PUT_MARK = {
    name: made.on_conflict_do_update(
        index_elements=["space", "name"],
        set_={"amount": made.excluded.amount, "until": made.excluded.until},
    )
    for name, made in _INSERT_MARK.items()
}
_REMOVE_MARK = delete(marks).where(marks.c.space == bindparam("space"), marks.c.name == bindparam("name"))
_COUNT_MARKS = select(func.count()).select_from(marks).where(marks.c.space == bindparam("space"))
_DELETE_ENDED_OF_SPACE = delete(marks).where(
    marks.c.space == bindparam("space"), marks.c.until <= bindparam("now")
)
_DELETE_ENDED = delete(marks).where(marks.c.until <= bindparam("now"))
_OLDEST_MARKS = (
    select(marks.c.name)
    .where(marks.c.space == bindparam("space"), marks.c.amount < bindparam("below"))
    .order_by(marks.c.until)
    .limit(bindparam("limit"))
)
_REMOVE_OLDEST_MARKS = delete(marks).where(
    marks.c.space == bindparam("space"), marks.c.name.in_(_OLDEST_MARKS)
)


class RecordSession(Session):
    """Operations, idempotency keys, secrets, audit events, the history, counters and marks."""

    # Operations, idempotency keys, secrets
    def insert_operation(self, operation: OperationRow) -> None:
        if not self._insert_new(_INSERT_OPERATION, operation_values(operation)):
            raise AlreadyExists(f"The operation {operation.id} exists already.")

    def get_operation(self, operation_id: str) -> OperationRow | None:
        row = self._one(_GET_OPERATION, {"id": operation_id})
        return None if row is None else operation_from(row)

    def list_operations(
        self,
        *,
        resource_id: str | None = None,
        parent_id: str | None = None,
        kind: str | None = None,
        unfinished: bool = False,
        page: Page | None = None,
    ) -> tuple[Sequence[OperationRow], str]:
        wanted = {"resource_id": resource_id, "parent_id": parent_id, "resource_kind": kind}
        rows, after = self._newest(_UNFINISHED if unfinished else _OPERATIONS, wanted, page)
        return [operation_from(row) for row in rows], after

    def update_operation(self, operation: OperationRow) -> None:
        values = operation_values(operation)
        values["row_id"] = values.pop("id")
        if not self._do(_UPDATE_OPERATION, values):
            raise StoreError(f"The operation {operation.id} does not exist.")

    def remember(self, key: IdempotencyKey) -> None:
        if not self._insert_new(_INSERT_KEY, key_values(key)):
            raise AlreadyExists(f"The idempotency key {key.key!r} was used already.")

    def recall(self, subject: str, method: str, key: str) -> IdempotencyKey | None:
        row = self._one(_GET_KEY, {"subject": subject, "method": method, "key": key})
        return None if row is None else key_from(row)

    def forget_keys(self, before: datetime) -> int:
        return self._do(_DELETE_OLD_KEYS, {"before": to_micros(before)})

    def list_audit(
        self, *, parent_id: str | None = None, resource_id: str | None = None, page: Page | None = None
    ) -> tuple[Sequence[AuditEvent], str]:
        rows, after = self._newest(_NEWEST_AUDIT, {"parent_id": parent_id, "resource_id": resource_id}, page)
        return [audit_from(row) for row in rows], after

    def put_secret(self, resource_id: str, name: str, value: bytes) -> None:
        sealed = self._vault.seal(resource_id, name, value)
        self._do(_DELETE_SECRET, {"id": resource_id, "secret": name})
        self._do(_INSERT_SECRET, {"resource_id": resource_id, "name": name, "value": sealed})

    def secret(self, resource_id: str, name: str) -> bytes | None:
        row = self._one(_GET_SECRET, {"id": resource_id, "secret": name})
        return None if row is None else self._vault.open(resource_id, name, row.value)

    def _newest(
        self, statement: Rows, wanted: Mapping[str, str | None], page: Page | None
    ) -> tuple[Any, str]:
        statement, values = chosen(statement, wanted)
        if page is None:
            return self._all(statement, values), ""
        statement, values["count"] = statement.limit(bindparam("count")), page.size + 1
        if page.after:
            seq = statement.selected_columns["seq"]
            statement, values["after"] = statement.where(seq < bindparam("after")), int(page.after)
        rows = self._all(statement, values)
        return rows[: page.size], str(rows[page.size - 1].seq) if len(rows) > page.size else ""

    # Audit events
    def audit(self, event: AuditEvent) -> None:
        self._do(_INSERT_AUDIT, audit_values(event))

    def find_audit(self, query: AuditQuery, page: Page) -> tuple[Sequence[AuditEvent], str]:
        statement = select(audit).where(audit.c.tenant_id == query.tenant_id, self._sql(query.condition))
        if query.start is not None:
            statement = statement.where(audit.c.at >= to_micros(query.start))
        if query.end is not None:
            statement = statement.where(audit.c.at < to_micros(query.end))
        if page.after:
            place, last = tuple_(audit.c.at, audit.c.seq), tuple(int(part) for part in page.after.split(":"))
            statement = statement.where(place > last if query.is_ascending else place < last)
        order = (audit.c.at, audit.c.seq) if query.is_ascending else (audit.c.at.desc(), audit.c.seq.desc())
        rows = self._all(statement.order_by(*order).limit(page.size + 1))
        found = rows[: page.size]
        has_more = len(rows) > page.size
        return [audit_from(row) for row in found], f"{found[-1].at}:{found[-1].seq}" if has_more else ""

    def forget_audit(self, before: datetime, limit: int) -> int:
        oldest = select(audit.c.seq).where(audit.c.at < to_micros(before)).order_by(audit.c.at).limit(limit)
        return self._do(delete(audit).where(audit.c.seq.in_(oldest.scalar_subquery())), {})

    def _sql(self, condition: Condition) -> ColumnElement[bool]:
        match condition:
            case Is(column, Test.EQUALS, value):
                return audit.c[column] == value
            case Is(column, Test.CONTAINS, value):
                # Not LIKE: it takes upper and lower case for the same on one of the databases.
                place: Any = func.instr if self._dialect == "sqlite" else func.strpos
                return place(audit.c[column], value) > 0
            case AllOf(parts):
                return and_(true(), *(self._sql(part) for part in parts))
            case AnyOf(parts):
                return or_(false(), *(self._sql(part) for part in parts))
            case Not(part):
                return not_(self._sql(part))
            case _:
                raise TypeError(f"{condition!r} is not a condition.")

    # History
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
            statement, values["kinds"] = statement.where(_HISTORY_OF_KINDS), list(kinds)
        if until is not None:
            statement, values["until"] = statement.where(_HISTORY_BEFORE), to_micros(until)
        return [history_from(row, self._vault) for row in self._all(statement, values)]

    def last_entry(self, resource_id: str) -> HistoryEntry | None:
        row = self._one(_LAST_ENTRY, {"id": resource_id})
        return None if row is None else history_from(row, self._vault)

    def history_sizes(self) -> HistorySizes:
        return _sizes(self._all(_HISTORY_SIZES))

    def forget_history(
        self, before: datetime, page: Page, *, keep: Sequence[str] = ()
    ) -> tuple[HistorySizes, str]:
        after = int(page.after or 0)
        rows = self._all(_HISTORY_PAGE, {"after": after, "count": page.size})
        if not rows:
            return {}, ""
        limit = to_micros(before)
        is_on_page = history.c.seq.between(after + 1, rows[-1].seq)
        is_replaced = is_on_page & (history.c.at < limit) & history.c.kind.not_in(keep) & _is_replaced(limit)
        sizes = _sizes(self._all(_HISTORY_SIZES.where(is_replaced)))
        if sizes:
            self._do(delete(history).where(is_replaced), {})
        is_last = len(rows) < page.size or rows[-1].at >= limit
        return sizes, "" if is_last else str(rows[-1].seq)

    # Counters
    def count(self, scope: str, name: str, change: int) -> int:
        row = self._row(_COUNT[self._dialect], {"scope": scope, "name": name, "amount": change})
        assert row is not None, "An insert or update of one row returns that row."
        return row[0]

    def counters(self, scope: str) -> Mapping[str, int]:
        return {row.name: row.amount for row in self._all(_COUNTERS_OF_SCOPE, {"scope": scope})}

    def all_counters(self) -> Mapping[tuple[str, str], int]:
        return {(row.scope, row.name): row.amount for row in self._all(_ALL_COUNTERS)}

    # Marks
    def mark(self, space: str, name: str, now: datetime) -> Mark | None:
        row = self._one(_GET_MARK, {"space": space, "name": name, "now": to_micros(now)})
        return None if row is None else Mark(row.amount, from_micros(row.until))

    def put_mark(self, space: str, name: str, mark: Mark) -> None:
        values = {"space": space, "name": name, "amount": mark.amount, "until": to_micros(mark.until)}
        self._do(_PUT_MARK[self._dialect], values)

    def remove_mark(self, space: str, name: str) -> None:
        self._do(_REMOVE_MARK, {"space": space, "name": name})

    def count_marks(self, space: str) -> int:
        return self._one(_COUNT_MARKS, {"space": space})[0]

    def forget_ended_marks(self, now: datetime) -> int:
        return self._do(_DELETE_ENDED, {"now": to_micros(now)})

    def forget_marks(self, space: str, now: datetime, *, below: int = 0, limit: int = 0) -> int:
        gone = self._do(_DELETE_ENDED_OF_SPACE, {"space": space, "now": to_micros(now)})
        if limit:
            gone += self._do(_REMOVE_OLDEST_MARKS, {"space": space, "below": below, "limit": limit})
        return gone


def _is_replaced(limit: int) -> ColumnElement[bool]:
    """True for an entry that was replaced before the limit, and for the last one of a deleted resource.

    Rows are numbered in the order in which they are written, whatever the clock said. The last entry of a
    deleted parent is kept while it has children in the history: it says where they belonged.
    """
    is_end = history.c.is_deleted & ~exists().where(_child_entry.c.parent_id == history.c.resource_id)
    later = exists().where(
        _later_entry.c.resource_id == history.c.resource_id,
        _later_entry.c.seq > history.c.seq,
        _later_entry.c.at < limit,
    )
    return or_(is_end, later)


def _sizes(rows: Any) -> HistorySizes:
    return {row.parent_id: (row.entries, int(row.size)) for row in rows}
