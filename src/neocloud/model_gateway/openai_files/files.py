"""Files of projects: bytes in `<home>/gateway/files/<project>/<id>` or in a bucket, rows in files.db.

Used by the gateway, and by the control plane for training data and results. A file exists completely or not
at all: bytes are written under another name and renamed in the transaction that inserts the row; what is in
a bucket (`bucket_files`) has a row once it is an object. Access is checked by the callers of this module. All
methods block; asyncio code calls them in threads.
"""

import fcntl
import hashlib
import os
import secrets
import sqlite3
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from neocloud.core.cleanup import undo_on_error
from neocloud.core.clock import Clock, SystemClock
from neocloud.model_gateway.openai_files.database import Database
from neocloud.model_gateway.openai_files.handlers import Page, unknown_after
from neocloud.model_gateway.openai_files.quota import StorageLimits, StorageQuota

UPLOAD_PURPOSES = ("fine-tune", "batch", "user_data", "assistants")
GENERATED = ("batch_output", "fine-tune-results")
PURPOSES = UPLOAD_PURPOSES + GENERATED
COPY_BYTES = 1 << 20
PARTIAL = ".partial"
FOLDER = "openai-files/"
"""The prefix of the objects of files in a bucket; the control plane issues keys for it alone."""


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
    bucket_id: str = ""
    """The bucket that has the bytes; "": they are in the gateway's own folder."""
    bucket: str = ""
    """Its name."""
    etag: str = ""
    """The ETag that the object got when it was written."""
    expires_at: int = 0
    """From then on it does not exist, and it is deleted soon after; 0: it stays."""

    @property
    def key(self) -> str:
        return f"{FOLDER}{self.id}"


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

    def add(
        self,
        project_id: str,
        path: Path,
        purpose: str,
        name: str,
        file_id: str = "",
        expires_seconds: int = 0,
    ) -> str:
        """Copy a file and return its id. Does nothing where `file_id` exists already."""
        if file_id and self.find(file_id):
            return file_id
        with self.draft(project_id, file_id) as draft, path.open("rb") as source:
            draft.expires_seconds = expires_seconds
            while chunk := source.read(COPY_BYTES):
                draft.write(chunk)
            return draft.keep(name, purpose).id

    def path(self, project_id: str, file_id: str) -> Path:
        """Return the path of the bytes of a file, for reading. Raises FileMissing."""
        found = self.find(file_id)
        if found is None or found.project_id != project_id:
            raise FileMissing(f"The project {project_id} has no file {file_id!r}.")
        if found.bucket_id:
            url = f"s3://{found.bucket}/{found.key}"
            raise FileMissing(f"The file {file_id!r} is the object {url}; name that instead.")
        return self.location(found)

    def location(self, file: StoredFile) -> Path:
        return self._root / file.project_id / file.id

    def find(self, file_id: str) -> StoredFile | None:
        with self.database.reading() as rows:
            query = f"SELECT {COLUMNS} FROM files WHERE id = ? AND {_EXISTS}"  # nosec B608
            row = rows.execute(query, (file_id, self.now())).fetchone()
        return _file(row) if row else None

    def page(self, project_id: str, page: Page, purpose: str = "") -> tuple[list[StoredFile], bool]:
        """Return one page, and whether more follow."""
        direction, beyond = ("DESC", "<") if page.newest_first else ("ASC", ">")
        where, values = f"project_id = ? AND {_EXISTS}", list[str | int]((project_id, self.now()))
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

    def expired(self) -> list[StoredFile]:
        """Return the files whose time has come, which nobody can read any more."""
        query = f"SELECT {COLUMNS} FROM files WHERE expires_at > 0 AND expires_at <= ? LIMIT 1000"  # nosec B608
        with self.database.reading() as rows:
            return [_file(row) for row in rows.execute(query, (self.now(),))]

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

    def insert(self, file: StoredFile, partial: Path | None = None) -> None:
        """Insert a row; `partial` becomes the bytes of a file that is in no bucket."""
        with self.database.transaction() as rows:
            rows.execute(
                f"INSERT INTO files ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # nosec B608
                astuple(file),
            )
            rows.execute(_SETTLED, (file.id, file.bucket_id))
            if partial is not None:
                partial.rename(self.location(file))

    def note_object(self, file: StoredFile) -> None:
        """Note that the object of a file without a row may exist soon."""
        with self.database.transaction() as rows:
            rows.execute(
                "INSERT OR REPLACE INTO unsettled_objects VALUES (?, ?, ?, ?)",
                (file.id, file.project_id, file.bucket_id, file.bucket),
            )

    def forget_object(self, file: StoredFile) -> None:
        """Note that there is no such object."""
        with self.database.transaction() as rows:
            rows.execute(_SETTLED, (file.id, file.bucket_id))

    def unsettled_objects(self) -> list[StoredFile]:
        """Return the files whose objects may exist without a row."""
        with self.database.reading() as rows:
            found = rows.execute("SELECT id, project_id, bucket_id, bucket FROM unsettled_objects").fetchall()
        return [
            StoredFile(row["id"], row["project_id"], "", "", 0, "", 0, row["bucket_id"], row["bucket"])
            for row in found
        ]

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
        self.path = folder / f".{file_id}.{secrets.token_hex(4)}{PARTIAL}"
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self.bytes = 0
        self.expires_seconds = 0
        """How long the file is kept; 0: until it is deleted."""

    def __enter__(self) -> Self:
        if self._quota:
            self._quota.enter(self._project_id, self)
        with undo_on_error(self._leave):
            return self._open()

    def _open(self) -> Self:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._file = os.fdopen(handle, "wb", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file:
                self.path.unlink(missing_ok=True)
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
        file = self.described(name, purpose)
        self._store.insert(file, self.path)
        return file

    def described(self, name: str, purpose: str) -> StoredFile:
        """Return what was written so far as a file, without keeping it."""
        now = self._store.now()
        return StoredFile(
            *(self._id, self._project_id, name, purpose),
            *(self.bytes, self._sha256.hexdigest(), now),
            expires_at=now + self.expires_seconds if self.expires_seconds else 0,
        )


_SETTLED = "DELETE FROM unsettled_objects WHERE id = ? AND bucket_id = ?"
COLUMNS = "id, project_id, name, purpose, bytes, sha256, created_at, bucket_id, bucket, etag, expires_at"
_EXISTS = "(expires_at = 0 OR expires_at > ?)"


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
