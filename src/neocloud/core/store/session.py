# pyright: strict

"""A database transaction in progress, and the ways in which it runs statements."""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Insert, Select, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Watcher
from neocloud.core.store.vault import Vault

Rows = Select[*tuple[Any, ...]]
"""A query, whatever its columns."""


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

    def _one(self, statement: Executable, values: Mapping[str, Any]) -> Any:
        return self._connection.execute(statement, values).first()

    def _row(self, statement: Executable, values: Mapping[str, Any]) -> Sequence[Any] | None:
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

    def _all(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Any:
        return self._connection.execute(statement, values or {}).fetchall()

    def _do(self, statement: Executable, values: Mapping[str, Any]) -> int:
        """Run a change and return the number of rows it touched."""
        return self._connection.execute(statement, values).rowcount

    def _insert_new(self, statements: "InsertNew", values: Mapping[str, Any]) -> bool:
        """False when a unique index forbids it; the transaction stays usable."""
        return self._do(statements[self._dialect], values) == 1


@cache
def _sqlite_text(statement: Any) -> str:
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


def chosen(statement: Rows, wanted: Mapping[str, str | None]) -> tuple[Rows, dict[str, Any]]:
    """Narrow the statement to rows whose columns have these values; None means any value."""
    values: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
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
