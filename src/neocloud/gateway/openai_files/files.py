# pyright: strict
"""Files of projects: bytes in `<home>/gateway/files/<project>/<id>`, rows in files.db.

Used by the gateway, and by the control plane for training data and results. A file exists completely or not
at all: bytes are written under another name and renamed in the transaction that inserts the row. Access is
checked by the callers of this module. All methods block; asyncio code calls them in threads.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from neocloud.core import sqlite_file
from neocloud.core.clock import Clock, SystemClock
from neocloud.gateway.api.errors import OpenAiError
from neocloud.gateway.openai_files.handlers import Page, unknown_after

MIGRATIONS = (
    """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_project ON files (project_id, number);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX batches_of_project ON batches (project_id, number);
CREATE INDEX open_batches ON batches (project_id) WHERE is_open;
""",
)


class Database:
    """The rows of files and batches in `<home>/gateway/files.db`.

    Threads take turns on one connection; the process of the control plane has another one. Transactions are
    short and hold no bytes of files.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn = threading.Lock()
        self._connection = sqlite_file.open_file(path, MIGRATIONS, timeout_seconds=30)
        self._connection.row_factory = sqlite3.Row
        path.chmod(0o600)

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Write alone, in this and all processes; an exception undoes the transaction."""
        with self._turn, sqlite_file.transaction(self._connection):
            yield self._connection

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        with self._turn:
            yield self._connection

    def close(self) -> None:
        with self._turn:
            self._connection.close()


_USED = """
SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE project_id = :project
"""
_USED_BY_BATCHES = """
SELECT coalesce(sum(coalesce(json_extract(document, '$.result_bytes'), 0) + CASE
    WHEN EXISTS (SELECT 1 FROM files WHERE id = json_extract(document, '$.input_file_id')) THEN 0
    ELSE coalesce(json_extract(document, '$.input_bytes'), 0) END), 0)
FROM batches WHERE project_id = :project AND is_open
"""
"""Inputs whose file was deleted count until their batch ends, as do results that are not in a file yet."""


@dataclass(frozen=True)
class StorageLimits:
    files: int
    """Files of one project."""
    bytes: int
    """Bytes of the files of one project, with what its batches keep."""
    free_bytes: int
    """Free space that is reserved for the ledger and the database of the control plane."""


class StorageQuota:
    """Limits on what projects store, and on the free space of the disk.

    What is being written counts as well, so concurrent uploads cannot exceed a limit together.
    """

    def __init__(self, database: Database, folder: Path, limits: StorageLimits) -> None:
        self._database = database
        self._folder = folder
        self._limits = limits
        self._writing: defaultdict[str, dict[object, int]] = defaultdict(dict)
        self._turn = threading.Lock()

    def enter(self, project_id: str, upload: object) -> None:
        """Count a file that is about to be written. Raises OpenAiError 429 or 507."""
        with self._turn:
            files, taken = self._used(project_id)
            if files >= self._limits.files:
                raise _quota_reached(f"{self._limits.files} files", project_id)
            if taken >= self._limits.bytes:
                raise _quota_reached(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(0)
            self._writing[project_id][upload] = 0

    def take(self, project_id: str, upload: object, size: int) -> None:
        """Count bytes before they are written. Raises OpenAiError 429 or 507."""
        with self._turn:
            _, taken = self._used(project_id)
            if taken + size > self._limits.bytes:
                raise _quota_reached(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(size)
            self._writing[project_id][upload] += size

    def leave(self, project_id: str, upload: object) -> None:
        """The upload has become a row of its own or was abandoned."""
        with self._turn:
            writing = self._writing.get(project_id, {})
            writing.pop(upload, None)
            if not writing:
                self._writing.pop(project_id, None)

    def require(self, project_id: str) -> None:
        """Raise OpenAiError 429 where the project cannot store the results of a batch, or 507."""
        with self._turn:
            _, taken = self._used(project_id)
            if taken >= self._limits.bytes:
                raise _quota_reached(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(0)

    def _used(self, project_id: str) -> tuple[int, int]:
        with self._database.reading() as rows:
            files, taken = _fetch_row(rows, _USED, project_id)
            (by_batches,) = _fetch_row(rows, _USED_BY_BATCHES, project_id)
        writing = self._writing.get(project_id, {})
        return files + len(writing), taken + by_batches + sum(writing.values())

    def _require_free(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free - size < self._limits.free_bytes:
            raise disk_full_error()


def _fetch_row(rows: sqlite3.Connection, query: str, project_id: str) -> sqlite3.Row:
    return rows.execute(query, {"project": project_id}).fetchone()


def _quota_reached(most: str, project_id: str) -> OpenAiError:
    return OpenAiError(
        429,
        f"The project {project_id} has reached its limit of {most}. Delete files, or ask your administrator"
        " to raise the limit.",
        type="insufficient_quota",
        code="insufficient_quota",
        headers={"x-should-retry": "false"},
    )


def disk_full_error() -> OpenAiError:
    """Clients must not retry uploads of gigabytes by themselves."""
    return OpenAiError(
        507,
        "The disk for files is full; nothing was stored. Delete files, or ask your administrator to free"
        " space.",
        type="server_error",
        code="disk_full",
        headers={"x-should-retry": "false"},
    )


UPLOAD_PURPOSES = ("fine-tune", "batch", "user_data")
GENERATED = ("batch_output", "fine-tune-results")
PURPOSES = UPLOAD_PURPOSES + GENERATED
COPY_BYTES = 1 << 20
PARTIAL = ".partial"


class FileMissing(LookupError):
    """The project has no such file."""


@dataclass(frozen=True)
class StoredFile:
    id: str
    project_id: str
    name: str
    purpose: str
    bytes: int
    sha256: str
    created_at: int


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


class FileStore:
    def __init__(self, home: Path, clock: Clock | None = None) -> None:
        self.database = Database(home / "gateway" / "files.db")
        self._root = home / "gateway" / "files"
        self._clock = clock or SystemClock()

    def quota(self, limits: StorageLimits) -> StorageQuota:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return StorageQuota(self.database, self._root, limits)

    def draft(self, project_id: str, file_id: str = "", quota: StorageQuota | None = None) -> "Draft":
        """Return a file to be written: `with store.draft(...) as draft: draft.write(...);
        draft.keep(...)`.

        With a `quota`, entering, writing and keeping raise OpenAiError at its limits.
        """
        return Draft(self, self._folder(project_id), project_id, file_id or new_file_id(), quota)

    def add(self, project_id: str, path: Path, purpose: str, name: str, file_id: str = "") -> str:
        """Copy a file and return its id. Does nothing where `file_id` exists already."""
        if file_id and self.find(file_id):
            return file_id
        with self.draft(project_id, file_id) as draft, path.open("rb") as source:
            while chunk := source.read(COPY_BYTES):
                draft.write(chunk)
            return draft.keep(name, purpose).id

    def path(self, project_id: str, file_id: str) -> Path:
        """Return the path of the bytes of a file, for reading. Raises FileMissing."""
        found = self.find(file_id)
        if found is None or found.project_id != project_id:
            raise FileMissing(f"The project {project_id} has no file {file_id!r}.")
        return self.location(found)

    def location(self, file: StoredFile) -> Path:
        return self._root / file.project_id / file.id

    def find(self, file_id: str) -> StoredFile | None:
        with self.database.reading() as rows:
            row = rows.execute(f"SELECT {COLUMNS} FROM files WHERE id = ?", (file_id,)).fetchone()  # nosec B608
        return _file(row) if row else None

    def page(self, project_id: str, page: Page, purpose: str = "") -> tuple[list[StoredFile], bool]:
        """Return one page, and whether more follow."""
        direction, beyond = ("DESC", "<") if page.newest_first else ("ASC", ">")
        where, values = "project_id = ?", [project_id]
        if purpose:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        with self.database.reading() as rows:
            if page.after:
                found = rows.execute(
                    "SELECT number FROM files WHERE id = ? AND project_id = ?", (page.after, project_id)
                ).fetchone()
                if found is None:
                    raise unknown_after(page.after)
                where, values = f"{where} AND number {beyond} ?", [*values, found["number"]]
            query = f"SELECT {COLUMNS} FROM files WHERE {where} ORDER BY number {direction} LIMIT ?"  # nosec B608
            files = [_file(row) for row in rows.execute(query, [*values, page.limit + 1])]
        return files[: page.limit], len(files) > page.limit

    def delete(self, file: StoredFile) -> bool:
        """Return False where it was deleted already. Open readers can read to the end."""
        with self.database.transaction() as rows:
            is_gone = rows.execute("DELETE FROM files WHERE id = ?", (file.id,)).rowcount == 0
        self.location(file).unlink(missing_ok=True)
        return not is_gone

    def sweep(self) -> int:
        """Remove bytes without a row, which interrupted uploads left behind, and return their number."""
        swept = 0
        with self.database.transaction() as rows:  # no draft is kept meanwhile
            known = {row["id"] for row in rows.execute("SELECT id FROM files")}
            for path in self._root.glob("*/*"):
                if path.name not in known and not _is_being_written(path):
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept

    def _folder(self, project_id: str) -> Path:
        if not project_id or "/" in project_id or project_id.startswith("."):
            raise FileMissing(f"{project_id!r} is not a project id.")
        folder = self._root / project_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def insert(self, file: StoredFile, partial: Path) -> None:
        with self.database.transaction() as rows:
            rows.execute(
                f"INSERT INTO files ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # nosec B608
                astuple(file),
            )
            partial.rename(self.location(file))

    def now(self) -> int:
        return int(self._clock.now().timestamp())


class Draft:
    """A file being written. Leaving the `with` without `keep` removes it. Its lock shows that its process
    is alive."""

    def __init__(
        self, store: FileStore, folder: Path, project_id: str, file_id: str, quota: StorageQuota | None
    ) -> None:
        self._quota = quota
        self._store = store
        self._project_id = project_id
        self._id = file_id
        self._path = folder / f".{file_id}.{secrets.token_hex(4)}{PARTIAL}"
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def __enter__(self) -> Self:
        if self._quota:
            self._quota.enter(self._project_id, self)
        try:
            return self._open()
        except BaseException:
            self._leave()
            raise

    def _open(self) -> Self:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._file = os.fdopen(handle, "wb", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file:
                self._path.unlink(missing_ok=True)
                self._file.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._quota:
            self._quota.leave(self._project_id, self)

    def write(self, chunk: bytes) -> None:
        assert self._file, "a draft is written inside its `with`"
        if self._quota:
            self._quota.take(self._project_id, self, len(chunk))
        left = memoryview(chunk)
        while left:
            left = left[self._file.write(left) :]
        self._sha256.update(chunk)
        self.bytes += len(chunk)

    def keep(self, name: str, purpose: str) -> StoredFile:
        """Turn the draft into a file. Raises OSError when the disk is full."""
        assert self._file, "a draft is kept inside its `with`"
        os.fsync(self._file.fileno())
        file = StoredFile(
            *(self._id, self._project_id, name, purpose),
            *(self.bytes, self._sha256.hexdigest(), self._store.now()),
        )
        self._store.insert(file, self._path)
        return file


COLUMNS = "id, project_id, name, purpose, bytes, sha256, created_at"


def _file(row: sqlite3.Row) -> StoredFile:
    return StoredFile(**dict(row))


def _is_being_written(path: Path) -> bool:
    if not path.name.endswith(PARTIAL):
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return True
    return False
