"""Between the database and the store's dataclasses: how statements run, and how rows become dataclasses."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Insert, Select, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from neocloud.core.clock import Clock
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import HistoryEntry, IdempotencyKey, OperationRow, Resource, Watcher
from neocloud.core.store.vault import Vault

Rows = Select[*tuple[Any, ...]]
"""A query, whatever its columns."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Session:
    """The base of `SqlTransaction`. Statements are built once, at import, and cached compiled."""

    def __init__(
        self, connection: Connection, clock: Clock, vault: Vault, watch: Watcher | None = None
    ) -> None:
        self._connection = connection
        self._dialect = connection.dialect.name
        self._clock = clock
        self._vault = vault
        self._watch = watch

    def _one(self, statement: Executable, values: Mapping[str, object]) -> Any:
        return self._connection.execute(statement, values).first()

    def _row(self, statement: Executable, values: Mapping[str, object]) -> Sequence[Any] | None:
        """Return the first row of a fixed statement, its columns in order.

        On SQLite this bypasses SQLAlchemy's execution, which takes five times as long as such a query.
        """
        if self._dialect != "sqlite":
            return self._one(statement, values)
        raw: Any = self._connection.connection.dbapi_connection
        sql = _sqlite_text(statement)
        try:
            return raw.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise DBAPIError(sql, dict(values), error) from error

    def _all(self, statement: Executable, values: Mapping[str, object] | None = None) -> Any:
        return self._connection.execute(statement, values or {}).fetchall()

    def _do(self, statement: Executable, values: Mapping[str, object]) -> int:
        """Run a change and return the number of rows it touched."""
        return self._connection.execute(statement, values).rowcount

    def _insert_new(self, statements: "InsertNew", values: Mapping[str, object]) -> bool:
        """False when a unique index forbids it; the transaction stays usable."""
        return self._do(statements[self._dialect], values) == 1


@cache
def _sqlite_text(statement: Any) -> str:
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


def chosen(statement: Rows, wanted: Mapping[str, str | None]) -> tuple[Rows, dict[str, object]]:
    """Narrow the statement to rows whose columns have these values; None means any value."""
    values: dict[str, object] = {name: value for name, value in wanted.items() if value is not None}
    return _narrowed(statement, tuple(values)), values


@cache
def _narrowed(statement: Rows, names: tuple[str, ...]) -> Rows:
    """Return the statement with conditions; cached, since building one takes longer than running it."""
    columns = statement.selected_columns
    return statement.where(*(columns[name] == bindparam(name) for name in names))


InsertNew = Mapping[str, Insert]


def insert_new(table: Table) -> InsertNew:
    """Return an insert for each database that skips a row which would break a unique index."""
    statements = {
        "sqlite": sqlite.insert(table).inline().on_conflict_do_nothing(),
        "postgresql": postgresql.insert(table).inline().on_conflict_do_nothing(),
    }
    # SQLAlchemy forgets an insert's row count otherwise, and it tells whether the row was inserted.
    return {name: found.execution_options(preserve_rowcount=True) for name, found in statements.items()}


def to_micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def to_micros_or_none(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def from_micros_or_none(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def dump_map(values: Mapping[str, str]) -> str:
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False) if values else ""


def load_map(text: str) -> dict[str, str]:
    return json.loads(text) if text else {}


def resource_values(resource: Resource, vault: Vault) -> dict[str, object]:
    return {
        **vars(resource),
        "created_at": to_micros(resource.created_at),
        "updated_at": to_micros(resource.updated_at),
        "labels": dump_map(resource.labels),
        "spec": vault.seal_part(resource.kind, resource.id, "spec", resource.spec),
        "status": vault.seal_part(resource.kind, resource.id, "status", resource.status),
        "finalizers": "\n".join(resource.finalizers),
        "deleted_at": to_micros_or_none(resource.deleted_at),
    }


def resource_from(row: Sequence[Any], vault: Vault) -> Resource:
    """From a row of all columns of `resources` in order; the first one, seq, is not part of it."""
    return Resource(
        id=row[1],
        kind=row[2],
        parent_id=row[3],
        name=row[4],
        created_at=from_micros(row[5]),
        updated_at=from_micros(row[6]),
        resource_version=row[7],
        labels=load_map(row[8]),
        spec=vault.open_part(row[1], "spec", row[9]),
        status=vault.open_part(row[1], "status", row[10]),
        state=row[11],
        owner_id=row[12],
        finalizers=tuple(row[13].split("\n")) if row[13] else (),
        deleted_at=from_micros_or_none(row[14]),
        observed_version=row[15],
    )


def operation_values(operation: OperationRow) -> dict[str, object]:
    return {
        **vars(operation),
        "created_at": to_micros(operation.created_at),
        "request_headers": dump_map(operation.request_headers),
        "finished_at": to_micros_or_none(operation.finished_at),
    }


def operation_from(row: Any) -> OperationRow:
    values = _fields(
        row,
        created_at=from_micros(row.created_at),
        request_headers=load_map(row.request_headers),
        finished_at=from_micros_or_none(row.finished_at),
    )
    return OperationRow(**values)


def _fields(row: Any, **changed: Any) -> dict[str, Any]:
    """Return a row with these values in place of its own, and without its number."""
    found: dict[str, Any] = {**row._mapping, **changed}
    del found["seq"]
    return found


def history_values(
    resource: Resource,
    at: datetime,
    vault: Vault,
    *,
    state: str | None = None,
    is_deleted: bool = False,
) -> dict[str, object]:
    return {
        "resource_id": resource.id,
        "kind": resource.kind,
        "parent_id": resource.parent_id,
        "name": resource.name,
        "at": to_micros(at),
        "state": resource.state if state is None else state,
        "resource_version": resource.resource_version,
        "spec": vault.seal_part(resource.kind, resource.id, "spec", resource.spec),
        "labels": dump_map(resource.labels),
        "is_deleted": is_deleted,
    }


def entry_bytes(resource: Resource) -> int:
    """The bytes of spec and labels in the entry that the history gets for the resource as it is. Bytes that
    sealing adds to a spec are not counted."""
    return len(resource.spec) + len(dump_map(resource.labels))


def history_from(row: Any, vault: Vault) -> HistoryEntry:
    spec = vault.open_part(row.resource_id, "spec", row.spec)
    return HistoryEntry(**_fields(row, at=from_micros(row.at), spec=spec, labels=load_map(row.labels)))


def audit_values(event: AuditEvent) -> dict[str, object]:
    return {**vars(event), "at": to_micros(event.at)}


def audit_from(row: Any) -> AuditEvent:
    return AuditEvent(**_fields(row, at=from_micros(row.at)))


def key_values(key: IdempotencyKey) -> dict[str, object]:
    return {**vars(key), "created_at": to_micros(key.created_at)}


def key_from(row: Any) -> IdempotencyKey:
    values: dict[str, Any] = {**row._mapping, "created_at": from_micros(row.created_at)}
    return IdempotencyKey(**values)
