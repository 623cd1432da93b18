"""Limits of what projects store in the gateway's own folder. Bytes in buckets count there, and not here."""

import shutil
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.openai_files.database import Database

_USED = """
SELECT count(*), coalesce(sum(bytes) FILTER (WHERE bucket_id = ''), 0) FROM files WHERE project_id = :project
"""
_USED_BY_BATCHES = """
SELECT coalesce(sum(coalesce(json_extract(document, '$.result_bytes'), 0) + CASE
    WHEN EXISTS (
        SELECT 1 FROM files WHERE id = json_extract(document, '$.input_file_id') AND bucket_id = ''
    ) THEN 0
    ELSE coalesce(json_extract(document, '$.input_bytes'), 0) END), 0)
FROM batches WHERE project_id = :project AND is_open
"""
"""Inputs whose file was deleted or is in a bucket count until their batch ends, as do results that are not in
a file yet."""


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

    Uploads in progress count as well, so concurrent uploads cannot exceed a limit together.
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

    @contextmanager
    def batch(self, project_id: str, copied: int) -> Generator[None]:
        """Count the copy of an input until the batch has a row. Raises OpenAiError 429 where the project
        cannot store it or any results, or 507."""
        key = object()
        with self._turn:
            _, taken = self._used(project_id)
            if taken + copied > self._limits.bytes or taken >= self._limits.bytes:
                raise _quota_reached(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(copied)
            self._writing[project_id][key] = copied
        try:
            yield
        finally:
            self.leave(project_id, key)

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
