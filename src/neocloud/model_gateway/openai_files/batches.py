"""Batches as rows of files.db."""

import errno
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neocloud.core.contract.json_codec import JsonObject
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.fields import parse_json
from neocloud.model_gateway.authentication import INVOKE, Caller
from neocloud.model_gateway.openai_files.database import Database
from neocloud.model_gateway.openai_files.handlers import (
    Page,
    unknown_after,
)

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
OPEN_STATES = ("validating", "in_progress", "finalizing", "cancelling")


@dataclass
class Batch:
    id: str
    project_id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    caller: dict[str, Any]
    """The caller that created the batch. Its access is checked when each line is sent."""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    state: str = "validating"
    model: str = ""
    times: dict[str, int] = field(default_factory=dict[str, int])
    """When it entered a state, for example {"in_progress": 1763769600}."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_bytes: int = 0
    result_bytes: int = 0
    """Bytes of results that are not in a file yet."""
    output_file_id: str = ""
    error_file_id: str = ""
    errors: list[Mapping[str, object]] = field(default_factory=list[Mapping[str, object]])
    output_expires_seconds: int = 0
    """How long the files of results are kept; 0: until they are deleted."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    def enter(self, state: str, now: int) -> None:
        self.state = state
        self.times.setdefault(state, now)


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"


def stored_caller(caller: Caller) -> dict[str, object]:
    """Return the part of a caller that its batch needs later."""
    projects = sorted(project for project in caller.grants if caller.may(INVOKE, project))
    return {
        "subject_id": caller.subject_id,
        "subject_name": caller.subject_name,
        "tenant_id": caller.tenant_id,
        "home_project_id": caller.home_project_id,
        "projects": projects,
        "proof": caller.proof,
    }


def batch_caller(batch: Batch) -> Caller:
    return caller_of(batch.caller)


def caller_of(stored: Mapping[str, Any]) -> Caller:
    """Return the caller of which `stored_caller` returned this part."""
    kept = dict(stored)
    projects = kept.pop("projects")
    return Caller(**kept, grants={project: frozenset([INVOKE]) for project in projects})


class BatchRows:
    """The rows of batches. Methods block; asyncio code calls them in threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch: Batch, most_open: int) -> None:
        with self._database.transaction() as rows:
            count = "SELECT count(*) FROM batches WHERE project_id = ? AND is_open"
            if rows.execute(count, (batch.project_id,)).fetchone()[0] >= most_open:
                raise OpenAiError(
                    429,
                    f"The project has {most_open} unfinished batches, which is the limit. Wait until one has"
                    " finished, or cancel one.",
                    type="insufficient_quota",
                    code="too_many_batches",
                )
            rows.execute(
                "INSERT INTO batches (id, project_id, is_open, document) VALUES (?, ?, ?, ?)",
                (batch.id, batch.project_id, batch.is_open, json.dumps(asdict(batch))),
            )

    def find(self, batch_id: str) -> Batch | None:
        with self._database.reading() as rows:
            return _find(rows, batch_id)

    def change(self, batch_id: str, change: Callable[[Batch], None]) -> Batch:
        """Read, change and write in one transaction. Raises LookupError."""
        with self._database.transaction() as rows:
            batch = _find(rows, batch_id)
            if batch is None:
                raise LookupError(f"There is no batch {batch_id!r}.")
            change(batch)
            rows.execute(
                "UPDATE batches SET is_open = ?, document = ? WHERE id = ?",
                (batch.is_open, json.dumps(asdict(batch)), batch.id),
            )
        return batch

    def page(self, project_id: str, page: Page) -> tuple[list[Batch], bool]:
        where, values = "project_id = ?", [project_id]
        with self._database.reading() as rows:
            if page.after:
                find = "SELECT number FROM batches WHERE id = ? AND project_id = ?"
                after = rows.execute(find, (page.after, project_id)).fetchone()
                if after is None:
                    raise unknown_after(page.after)
                where, values = f"{where} AND number < ?", [*values, after["number"]]
            query = f"SELECT document FROM batches WHERE {where} ORDER BY number DESC LIMIT ?"  # nosec B608
            found = [_from_row(row) for row in rows.execute(query, [*values, page.limit + 1])]
        return found[: page.limit], len(found) > page.limit

    def open(self) -> list[Batch]:
        """Return the unfinished batches of all projects, oldest first."""
        with self._database.reading() as rows:
            query = "SELECT document FROM batches WHERE is_open ORDER BY number"
            return [_from_row(row) for row in rows.execute(query)]


def _find(rows: sqlite3.Connection, batch_id: str) -> Batch | None:
    row = rows.execute("SELECT document FROM batches WHERE id = ?", (batch_id,)).fetchone()
    return _from_row(row) if row else None


def _from_row(row: sqlite3.Row) -> Batch:
    return Batch(**json.loads(row["document"]))


def batch_as_openai(batch: Batch) -> dict[str, object]:
    at = batch.times.get
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.state,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.created_at,
        "in_progress_at": at("in_progress"),
        "expires_at": batch.expires_at,
        "finalizing_at": at("finalizing"),
        "completed_at": at("completed"),
        "failed_at": at("failed"),
        "expired_at": at("expired"),
        "cancelling_at": at("cancelling"),
        "cancelled_at": at("cancelled"),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata or None,
    }


BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """The result of a line. `number` is that of the line in the input; failed records go to the error
    file."""

    number: int
    is_ok: bool
    output: Mapping[str, object]

    def to_bytes(self) -> bytes:
        mark = "+" if self.is_ok else "-"
        return f"{self.number}\t{mark}\t{json.dumps(self.output, ensure_ascii=False)}\n".encode(
            "utf-8", "surrogatepass"
        )


class ResultsFile:
    def __init__(self, folder: Path, min_free_bytes: int = 0) -> None:
        """`append` raises OSError (ENOSPC) before less than `min_free_bytes` of the disk are free."""
        self._path = folder / "results"
        self._min_free_bytes = min_free_bytes
        self._answered = bytearray()
        self.completed = self.failed = 0
        whole = 0
        if self._path.exists():
            with self._path.open("rb") as file:
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    whole += len(raw)
                    number, mark, _ = raw.split(b"\t", 2)
                    self._count(int(number), mark == b"+")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, whole)
        self._end = whole

    def append(self, records: Iterable[Record]) -> None:
        """Append all records, or none when the disk is full."""
        records = list(records)
        data = b"".join(record.to_bytes() for record in records)
        written = 0
        if data and shutil.disk_usage(self._path.parent).free - len(data) < self._min_free_bytes:
            raise OSError(errno.ENOSPC, "the disk has reached the space that is to stay free")
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += written
        for record in records:
            self._count(record.number, record.is_ok)

    def has(self, number: int) -> bool:
        """Return whether the line of this number has a result."""
        return number < len(self._answered) and self._answered[number] == 1

    @property
    def bytes(self) -> int:
        return self._end

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def _count(self, number: int, is_ok: bool) -> None:
        if number >= len(self._answered):
            self._answered.extend(bytes(number + 1024 - len(self._answered)))
        self._answered[number] = 1
        self.completed += is_ok
        self.failed += not is_ok


def split_results(folder: Path) -> tuple[Path, Path]:
    """Write the output and the error file from the results."""
    output, errors = folder / "output.jsonl", folder / "errors.jsonl"
    with (folder / "results").open("rb") as results, output.open("wb") as good, errors.open("wb") as bad:
        for raw in results:
            _, mark, line = raw.split(b"\t", 2)
            (good if mark == b"+" else bad).write(line)
    return output, errors


@dataclass(frozen=True)
class Line:
    number: int
    custom_id: str
    body: JsonObject


class InputLines:
    """The lines of an input file without a result, read in blocks."""

    def __init__(self, path: Path, results: ResultsFile) -> None:
        self._path = path
        self._results = results
        self._offset = 0
        self._number = 0

    def read_block(self) -> list[Line]:
        """Return the next lines; empty at the end."""
        lines: list[Line] = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while not lines:
                block = file.readlines(BLOCK_BYTES)
                if not block:
                    break
                lines = list(self._of(block))
            self._offset = file.tell()
        return lines

    def _of(self, block: list[bytes]) -> Iterator[Line]:
        for raw in block:
            self._number += 1
            if raw.strip() and not self._results.has(self._number):
                value: Any = parse_json(raw.removeprefix(BOM) if self._number == 1 else raw)
                yield Line(self._number, value["custom_id"], value["body"])
