"""How much a project may keep at the gateway, and how much of the disk stays free whoever asks.

What is being written counts as much as what is there, so uploads at the same time cannot overrun a limit
together. Blocks: call it in threads.
"""

import shutil
import sqlite3
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.objects.database import Database

_USED = """
SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE project_id = :project
"""
_USED_BY_BATCHES = """
SELECT coalesce(sum(coalesce(json_extract(document, '$.result_bytes'), 0) + CASE
    WHEN EXISTS (SELECT 1 FROM files WHERE id = json_extract(document, '$.input_file_id')) THEN 0
    ELSE coalesce(json_extract(document, '$.input_bytes'), 0) END), 0)
FROM batches WHERE project_id = :project AND is_open
"""
"""Inputs whose file was deleted are kept until their batch is over; so are answers that are no file yet."""


@dataclass(frozen=True)
class RoomLimits:
    files: int
    """Files of one project."""
    bytes: int
    """Bytes of one project's files, with what its batches keep."""
    free_bytes: int
    """Disk space that stays free for the ledger and the control plane's database."""


class Room:
    """The limits of one store of files, for the uploads into it."""

    def __init__(self, database: Database, folder: Path, limits: RoomLimits) -> None:
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
                raise _full(f"{self._limits.files} files", project_id)
            if taken >= self._limits.bytes:
                raise _full(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(0)
            self._writing[project_id][upload] = 0

    def take(self, project_id: str, upload: object, size: int) -> None:
        """Count bytes before they are written. Raises OpenAiError 429 or 507."""
        with self._turn:
            _, taken = self._used(project_id)
            if taken + size > self._limits.bytes:
                raise _full(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(size)
            self._writing[project_id][upload] += size

    def leave(self, project_id: str, upload: object) -> None:
        """The upload is a row of its own by now, or came to nothing."""
        with self._turn:
            writing = self._writing.get(project_id, {})
            writing.pop(upload, None)
            if not writing:
                self._writing.pop(project_id, None)

    def require(self, project_id: str) -> None:
        """Raises OpenAiError 429 where the project has no room for what its batch would make, or 507."""
        with self._turn:
            _, taken = self._used(project_id)
            if taken >= self._limits.bytes:
                raise _full(f"{self._limits.bytes} bytes of files", project_id)
            self._require_free(0)

    def _used(self, project_id: str) -> tuple[int, int]:
        with self._database.reading() as rows:
            files, taken = _row(rows, _USED, project_id)
            (by_batches,) = _row(rows, _USED_BY_BATCHES, project_id)
        writing = self._writing.get(project_id, {})
        return files + len(writing), taken + by_batches + sum(writing.values())

    def _require_free(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free - size < self._limits.free_bytes:
            raise disk_full()


def _row(rows: sqlite3.Connection, query: str, project_id: str) -> sqlite3.Row:
    return rows.execute(query, {"project": project_id}).fetchone()


def _full(most: str, project_id: str) -> OpenAiError:
    return OpenAiError(
        429,
        f"The project {project_id} has reached its limit of {most}. Delete files, or ask your administrator"
        " to raise the limit.",
        type="insufficient_quota",
        code="insufficient_quota",
        headers={"x-should-retry": "false"},
    )


def disk_full() -> OpenAiError:
    """Clients must not send gigabytes again on their own."""
    return OpenAiError(
        507,
        "The disk for files is full; nothing was stored. Delete files, or ask your administrator to free"
        " space.",
        type="server_error",
        code="disk_full",
        headers={"x-should-retry": "false"},
    )
