"""Rows of vector stores, their files and batches of files, in `<home>/gateway/retrieval.db`.

Methods block; asyncio code calls them in threads. Access is checked by the callers of this module.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from neocloud.model_gateway.openai_files.database import Database
from neocloud.model_gateway.openai_files.handlers import Page, unknown_after

RETRIEVAL_DB = "retrieval.db"
MIGRATIONS = (
    """
CREATE TABLE stores (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    metadata TEXT NOT NULL,
    embedding_model TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    expires_days INTEGER NOT NULL,
    is_expired INTEGER NOT NULL
);
CREATE INDEX stores_of_project ON stores (project_id, number);
CREATE TABLE store_files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    store_id TEXT NOT NULL,
    file_id TEXT NOT NULL,
    batch_id TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT NOT NULL,
    max_tokens INTEGER NOT NULL,
    overlap_tokens INTEGER NOT NULL,
    attributes TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    caller TEXT NOT NULL,
    UNIQUE (store_id, file_id)
);
CREATE INDEX files_of_store ON store_files (store_id, number);
CREATE INDEX unfinished_files ON store_files (number) WHERE status = 'in_progress';
CREATE TABLE file_batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    store_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    is_cancelled INTEGER NOT NULL
);
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    document TEXT NOT NULL,
    conversation TEXT NOT NULL
);
CREATE INDEX responses_of_project ON responses (project_id, number)
""",
)
STATUSES = ("in_progress", "completed", "failed", "cancelled")


@dataclass(frozen=True)
class VectorStore:
    id: str
    project_id: str
    name: str
    description: str
    embedding_model: str
    created_at: int
    last_active_at: int
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    expires_days: int = 0
    """Days after its last use; 0: it stays."""
    is_expired: bool = False

    @property
    def expires_at(self) -> int:
        return self.last_active_at + self.expires_days * 86400 if self.expires_days else 0


@dataclass(frozen=True)
class StoreFile:
    store_id: str
    file_id: str
    name: str
    created_at: int
    max_tokens: int
    overlap_tokens: int
    caller: Mapping[str, Any]
    """The account that attached it, in the form of `stored_caller`."""
    attributes: Mapping[str, str | float | bool] = field(default_factory=dict[str, str | float | bool])
    batch_id: str = ""
    status: str = "in_progress"
    error: Mapping[str, str] = field(default_factory=dict[str, str])
    """`code` and `message` of a file that failed."""
    bytes: int = 0


@dataclass(frozen=True)
class FileBatch:
    id: str
    store_id: str
    created_at: int
    is_cancelled: bool = False


@dataclass(frozen=True)
class Usage:
    """Files of a store or batch by status, and the bytes of their chunks and vectors."""

    counts: Mapping[str, int]
    bytes: int

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def attributes_of_files(path: Path, store_id: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of the completed files of a store, for the index process."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as rows:
        query = "SELECT file_id, attributes FROM store_files WHERE store_id = ? AND status = 'completed'"
        return {file_id: orjson.loads(text) for file_id, text in rows.execute(query, (store_id,))}


class Catalogue:
    def __init__(self, home: Path) -> None:
        self.database = Database(home / "gateway" / RETRIEVAL_DB, MIGRATIONS)

    def add_store(self, store: VectorStore) -> None:
        with self.database.transaction() as rows:
            _insert(rows, "stores", {**vars(store), "metadata": _json(store.metadata)})

    def store(self, store_id: str) -> VectorStore | None:
        with self.database.reading() as rows:
            row = rows.execute("SELECT * FROM stores WHERE id = ?", (store_id,)).fetchone()
        return _store(row) if row else None

    def count_stores(self, project_id: str) -> int:
        with self.database.reading() as rows:
            query = "SELECT count(*) FROM stores WHERE project_id = ?"
            return rows.execute(query, (project_id,)).fetchone()[0]

    def stores(self, project_id: str, page: Page) -> tuple[list[VectorStore], bool]:
        rows, has_more = self._page("stores", "id", "project_id = ?", [project_id], page)
        return [_store(row) for row in rows], has_more

    def change_store(self, store: VectorStore) -> None:
        """Write what can be changed of a store."""
        with self.database.transaction() as rows:
            rows.execute(
                "UPDATE stores SET name = ?, description = ?, metadata = ?, expires_days = ? WHERE id = ?",
                (store.name, store.description, _json(store.metadata), store.expires_days, store.id),
            )

    def note_use(self, store_id: str, now: int) -> None:
        with self.database.transaction() as rows:
            rows.execute("UPDATE stores SET last_active_at = ? WHERE id = ?", (now, store_id))

    def delete_store(self, store_id: str) -> bool:
        with self.database.transaction() as rows:
            rows.execute("DELETE FROM store_files WHERE store_id = ?", (store_id,))
            rows.execute("DELETE FROM file_batches WHERE store_id = ?", (store_id,))
            return rows.execute("DELETE FROM stores WHERE id = ?", (store_id,)).rowcount > 0

    def expire(self, now: int) -> list[str]:
        """Mark the stores whose time has come, remove their files, and return their ids."""
        due = "expires_days > 0 AND NOT is_expired AND last_active_at + expires_days * 86400 <= ?"
        with self.database.transaction() as rows:
            ids = [row[0] for row in rows.execute(f"SELECT id FROM stores WHERE {due}", (now,))]  # nosec B608
            for store_id in ids:
                rows.execute("UPDATE stores SET is_expired = 1 WHERE id = ?", (store_id,))
                rows.execute("DELETE FROM store_files WHERE store_id = ?", (store_id,))
        return ids

    def usage(self, store_id: str, batch_id: str = "") -> Usage:
        where, values = ("AND batch_id = ?", [batch_id]) if batch_id else ("", list[str]())
        query = (
            "SELECT status, count(*), sum(bytes) FROM store_files"  # nosec B608
            f" WHERE store_id = ? {where} GROUP BY status"
        )
        with self.database.reading() as rows:
            found = rows.execute(query, [store_id, *values]).fetchall()
        counts = {status: 0 for status in STATUSES} | {row[0]: row[1] for row in found}
        return Usage(counts, sum(row[2] for row in found))

    def project_bytes(self, project_id: str) -> int:
        query = (
            "SELECT coalesce(sum(bytes), 0) FROM store_files JOIN stores ON stores.id = store_id"
            " WHERE project_id = ?"
        )
        with self.database.reading() as rows:
            return rows.execute(query, (project_id,)).fetchone()[0]

    def add_files(self, files: Sequence[StoreFile], batch: FileBatch | None = None) -> None:
        """Add files that are to be indexed; one that is there already is indexed again."""
        with self.database.transaction() as rows:
            if batch is not None:
                _insert(rows, "file_batches", vars(batch))
            for file in files:
                rows.execute(
                    "DELETE FROM store_files WHERE store_id = ? AND file_id = ?",
                    (file.store_id, file.file_id),
                )
                texts = {name: _json(getattr(file, name)) for name in ("caller", "attributes", "error")}
                _insert(rows, "store_files", {**vars(file), **texts})

    def file(self, store_id: str, file_id: str) -> StoreFile | None:
        query = "SELECT * FROM store_files WHERE store_id = ? AND file_id = ?"
        with self.database.reading() as rows:
            row = rows.execute(query, (store_id, file_id)).fetchone()
        return _store_file(row) if row else None

    def files(
        self, store_id: str, page: Page, *, status: str = "", batch_id: str = ""
    ) -> tuple[list[StoreFile], bool]:
        where, values = "store_id = ?", [store_id]
        for name, value in (("status", status), ("batch_id", batch_id)):
            if value:
                where, values = f"{where} AND {name} = ?", [*values, value]
        rows, has_more = self._page("store_files", "file_id", where, values, page)
        return [_store_file(row) for row in rows], has_more

    def unfinished(self) -> list[tuple[str, str]]:
        """Return (store, file) of all files that are to be indexed, the oldest first."""
        query = "SELECT store_id, file_id FROM store_files WHERE status = 'in_progress' ORDER BY number"
        with self.database.reading() as rows:
            return [(row[0], row[1]) for row in rows.execute(query)]

    def count_unfinished(self, project_id: str) -> int:
        query = (
            "SELECT count(*) FROM store_files JOIN stores ON stores.id = store_id"
            " WHERE status = 'in_progress' AND project_id = ?"
        )
        with self.database.reading() as rows:
            return rows.execute(query, (project_id,)).fetchone()[0]

    def names(self, store_id: str, file_ids: Sequence[str]) -> dict[str, StoreFile]:
        """Return those of the files that are completed, by id."""
        query = (
            "SELECT * FROM store_files WHERE store_id = ? AND status = 'completed'"
            " AND file_id IN (SELECT value FROM json_each(?))"
        )
        with self.database.reading() as rows:
            found = rows.execute(query, (store_id, _json(file_ids)))
            return {row["file_id"]: _store_file(row) for row in found}

    def finish_file(
        self, file: StoreFile, status: str, *, size: int = 0, error: Mapping[str, str] | None = None
    ) -> bool:
        """Note the end of indexing. Returns False where the file was removed, cancelled or added again."""
        query = (
            "UPDATE store_files SET status = ?, bytes = ?, error = ?"
            " WHERE store_id = ? AND file_id = ? AND created_at = ? AND status = 'in_progress'"
        )
        values = (status, size, _json(error or {}), file.store_id, file.file_id, file.created_at)
        with self.database.transaction() as rows:
            return rows.execute(query, values).rowcount > 0

    def set_attributes(self, file: StoreFile, attributes: Mapping[str, str | float | bool]) -> StoreFile:
        with self.database.transaction() as rows:
            rows.execute(
                "UPDATE store_files SET attributes = ? WHERE store_id = ? AND file_id = ?",
                (_json(attributes), file.store_id, file.file_id),
            )
        return replace(file, attributes=attributes)

    def remove_file(self, store_id: str, file_id: str) -> bool:
        query = "DELETE FROM store_files WHERE store_id = ? AND file_id = ?"
        with self.database.transaction() as rows:
            return rows.execute(query, (store_id, file_id)).rowcount > 0

    def stores_with(self, file_id: str) -> list[str]:
        query = "SELECT store_id FROM store_files WHERE file_id = ?"
        with self.database.reading() as rows:
            return [row[0] for row in rows.execute(query, (file_id,))]

    def indexed_files(self) -> dict[str, list[str]]:
        """Return the ids of all files by store, of stores that have not expired."""
        query = (
            "SELECT stores.id, store_files.file_id FROM stores LEFT JOIN store_files"
            " ON store_files.store_id = stores.id AND status IN ('in_progress', 'completed')"
            " WHERE NOT is_expired"
        )
        found: dict[str, list[str]] = {}
        with self.database.reading() as rows:
            for store_id, file_id in rows.execute(query):
                found.setdefault(store_id, []).extend([file_id] if file_id else [])
        return found

    def batch(self, batch_id: str) -> FileBatch | None:
        with self.database.reading() as rows:
            row = rows.execute("SELECT * FROM file_batches WHERE id = ?", (batch_id,)).fetchone()
        return (
            FileBatch(row["id"], row["store_id"], row["created_at"], bool(row["is_cancelled"]))
            if row
            else None
        )

    def cancel_batch(self, batch: FileBatch) -> FileBatch:
        with self.database.transaction() as rows:
            rows.execute("UPDATE file_batches SET is_cancelled = 1 WHERE id = ?", (batch.id,))
            rows.execute(
                "UPDATE store_files SET status = 'cancelled' WHERE batch_id = ? AND status = 'in_progress'",
                (batch.id,),
            )
        return replace(batch, is_cancelled=True)

    def _page(
        self, table: str, key: str, where: str, values: Sequence[str], page: Page
    ) -> tuple[list[sqlite3.Row], bool]:
        direction, beyond = ("DESC", "<") if page.newest_first else ("ASC", ">")
        given: list[str | int] = [*values]
        with self.database.reading() as rows:
            if page.after:
                query = f"SELECT number FROM {table} WHERE {where} AND {key} = ?"  # nosec B608
                found = rows.execute(query, [*given, page.after]).fetchone()
                if found is None:
                    raise unknown_after(page.after)
                where, given = f"{where} AND number {beyond} ?", [*given, found["number"]]
            query = f"SELECT * FROM {table} WHERE {where} ORDER BY number {direction} LIMIT ?"  # nosec B608
            listed = rows.execute(query, [*given, page.limit + 1]).fetchall()
        return listed[: page.limit], len(listed) > page.limit


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _insert(rows: sqlite3.Connection, table: str, values: Mapping[str, object]) -> None:
    marks = ", ".join(f":{name}" for name in values)
    rows.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", values)  # nosec B608


def _values(row: sqlite3.Row, *documents: str) -> dict[str, Any]:
    """Return the columns of a row; `documents` are those with JSON."""
    kept: dict[str, Any] = {name: row[name] for name in row.keys() if name != "number"}  # noqa: SIM118
    return kept | {name: orjson.loads(kept[name]) for name in documents}


def _store(row: sqlite3.Row) -> VectorStore:
    values = _values(row, "metadata")
    values["is_expired"] = bool(values["is_expired"])
    return VectorStore(**values)


def _store_file(row: sqlite3.Row) -> StoreFile:
    return StoreFile(**_values(row, "caller", "attributes", "error"))
