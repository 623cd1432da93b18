"""Files of projects: bytes in `<home>/gateway/files/<project>/<id>`, rows in files.db.

Used by the gateway and, for training data and results, by the control plane's own process. A file is there as
a whole or not at all: bytes are written under another name, and get their own in the transaction that makes
the row. It knows nothing of callers; who may see a file is decided before it is asked. Blocks: call it in
threads.
"""

import fcntl
import hashlib
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from neocloud.core.clock import Clock, SystemClock
from neocloud.gateway.objects.database import Database
from neocloud.gateway.objects.pages import Page, unknown_after
from neocloud.gateway.objects.room import Room, RoomLimits

UPLOADED = ("fine-tune", "batch", "user_data")
MADE_HERE = ("batch_output", "fine-tune-results")
PURPOSES = UPLOADED + MADE_HERE
COPIED_BYTES = 1 << 20
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

    def room(self, limits: RoomLimits) -> Room:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Room(self.database, self._root, limits)

    def draft(self, project_id: str, file_id: str = "", room: Room | None = None) -> "Draft":
        """A file being written: `with store.draft(...) as draft: draft.write(...); draft.keep(...)`.

        With a `room`, entering, writing and keeping raise OpenAiError where it ends.
        """
        return Draft(self, self._folder(project_id), project_id, file_id or new_file_id(), room)

    def add(self, project_id: str, path: Path, purpose: str, name: str, file_id: str = "") -> str:
        """Copies a file in and returns its id. With a `file_id` that is there already, nothing happens."""
        if file_id and self.find(file_id):
            return file_id
        with self.draft(project_id, file_id) as draft, path.open("rb") as source:
            while chunk := source.read(COPIED_BYTES):
                draft.write(chunk)
            return draft.keep(name, purpose).id

    def path(self, project_id: str, file_id: str) -> Path:
        """Where the bytes of a project's file are, to read. Raises FileMissing."""
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

    def page(self, project_id: str, asked: Page, purpose: str = "") -> tuple[list[StoredFile], bool]:
        """One page, and whether more follow."""
        direction, beyond = ("DESC", "<") if asked.newest_first else ("ASC", ">")
        where, values = "project_id = ?", [project_id]
        if purpose:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        with self.database.reading() as rows:
            if asked.after:
                found = rows.execute(
                    "SELECT number FROM files WHERE id = ? AND project_id = ?", (asked.after, project_id)
                ).fetchone()
                if found is None:
                    raise unknown_after(asked.after)
                where, values = f"{where} AND number {beyond} ?", [*values, found["number"]]
            query = f"SELECT {COLUMNS} FROM files WHERE {where} ORDER BY number {direction} LIMIT ?"  # nosec B608
            files = [_file(row) for row in rows.execute(query, [*values, asked.limit + 1])]
        return files[: asked.limit], len(files) > asked.limit

    def delete(self, file: StoredFile) -> bool:
        """False when another was quicker. Who reads it now reads it to its end."""
        with self.database.transaction() as rows:
            is_gone = rows.execute("DELETE FROM files WHERE id = ?", (file.id,)).rowcount == 0
        self.location(file).unlink(missing_ok=True)
        return not is_gone

    def sweep(self) -> int:
        """Remove bytes without a row: of uploads that broke off with their process. Returns how many."""
        swept = 0
        with self.database.transaction() as rows:  # nobody keeps a draft meanwhile
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
                (
                    *(file.id, file.project_id, file.name, file.purpose),
                    *(file.bytes, file.sha256, file.created_at),
                ),
            )
            partial.rename(self.location(file))

    def now(self) -> int:
        return int(self._clock.now().timestamp())


class Draft:
    """Bytes on their way in. Leaving it without `keep` removes them. Its lock says that its process lives."""

    def __init__(
        self, store: FileStore, folder: Path, project_id: str, file_id: str, room: Room | None
    ) -> None:
        self._room = room
        self._store = store
        self._project_id = project_id
        self._id = file_id
        self._path = folder / f".{file_id}.{secrets.token_hex(4)}{PARTIAL}"
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def __enter__(self) -> Self:
        if self._room:
            self._room.enter(self._project_id, self)
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
        if self._room:
            self._room.leave(self._project_id, self)

    def write(self, chunk: bytes) -> None:
        assert self._file, "a draft is written inside its `with`"
        if self._room:
            self._room.take(self._project_id, self, len(chunk))
        left = memoryview(chunk)
        while left:
            left = left[self._file.write(left) :]
        self._sha256.update(chunk)
        self.bytes += len(chunk)

    def keep(self, name: str, purpose: str) -> StoredFile:
        """From now on it is a file. Raises OSError when the disk is full."""
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
