"""A connection to the metadata, as the statements of this package see it. `sqlite3.Connection` is one.

Statements are those that SQLite and PostgreSQL both understand, with `?` for values. Statements that differ
in PostgreSQL are translated in `postgres.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from neocloud.object_store.errors import ObjectStoreError

Row: TypeAlias = tuple[Any, ...]
"""One row, whose columns are those of the statement."""


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...  # a Row, or None where the statement may find none

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    def __next__(self) -> Row: ...


class Connection(Protocol):
    def execute(self, sql: str, parameters: Sequence[object] = (), /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]], /) -> Cursor: ...

    def close(self) -> None: ...


class Metadata(Protocol):
    """The database: what SQLite and PostgreSQL do in other ways."""

    @property
    def errors(self) -> type[Exception]:
        """Return the exception class of its connections."""
        ...

    @property
    def is_shared(self) -> bool:
        """Return whether other processes may write to it, now or later, so that nothing that was read is
        kept.
        """
        ...

    @property
    def reading(self) -> Connection:
        """Used in the thread of the event loop alone, and never across an await. Raises StoreUnavailable."""
        ...

    @property
    def writing(self) -> Connection:
        """Used in the writer thread alone, between `begin` and `commit`."""
        ...

    def open_reading(self) -> Connection:
        """Open another connection that reads, for another thread. Raises StoreUnavailable."""
        ...

    def begin(self) -> None:
        """Begin a transaction, in which nobody else writes."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Undo the transaction; an error is ignored."""
        ...

    def take_seq(self) -> int:
        """Return a number that is never used again: also where the work is undone, a later one is higher."""
        ...

    def is_of_one(self, error: Exception) -> bool:
        """Return whether an error is of one statement; others concern all that is written together."""
        ...

    def explain(self, error: Exception) -> ObjectStoreError: ...

    def close(self) -> None: ...
