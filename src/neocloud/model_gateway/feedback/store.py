"""Ratings of answers, in `<home>/gateway/feedback.db`."""

import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from neocloud.core import sqlite_file
from neocloud.core.clock import Clock
from neocloud.model_gateway.openai_files.handlers import Page, unknown_after

MIGRATIONS = (
    """
CREATE TABLE ratings (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    called TEXT NOT NULL,
    answered_by TEXT NOT NULL,
    rating TEXT NOT NULL,
    question TEXT NOT NULL,
    answer TEXT NOT NULL,
    comment TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (request_id, subject_id)
);
CREATE INDEX ratings_of_project ON ratings (project_id, number);
""",
)
MOST_OF_PROJECT = 10_000
"""Ratings that are kept of a project; the oldest go."""
KEPT_SECONDS = 90 * 24 * 3600


@dataclass(frozen=True)
class Rating:
    """The texts are "" where its author did not consent to store them."""

    id: str
    project_id: str
    subject_id: str
    request_id: str
    called: str
    answered_by: str
    rating: str
    """up or down"""
    question: str
    answer: str
    comment: str
    created_at: int


_COLUMNS = ", ".join(Rating.__annotations__)
_PLACES = ", ".join(f":{name}" for name in Rating.__annotations__)


class RatingStore:
    """Threads take turns on one connection. Raises sqlite3.Error where the disk does not answer."""

    def __init__(self, path: Path, clock: Clock) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn = threading.Lock()
        self._connection = sqlite_file.open_file(path, MIGRATIONS, timeout_seconds=30)
        self._clock = clock
        path.chmod(0o600)

    def put(self, fields: Mapping[str, str]) -> Rating:
        """Store a rating, in place of an earlier one of the same answer by the same subject."""
        rating_id, now = f"feedback-{secrets.token_hex(12)}", int(self._clock.now().timestamp())
        rating = Rating(id=rating_id, created_at=now, **fields)
        with self._turn, sqlite_file.transaction(self._connection):
            execute = self._connection.execute
            execute(
                "DELETE FROM ratings WHERE request_id = ? AND subject_id = ?",
                (rating.request_id, rating.subject_id),
            )
            execute(f"INSERT INTO ratings ({_COLUMNS}) VALUES ({_PLACES})", asdict(rating))  # nosec B608
            execute("DELETE FROM ratings WHERE created_at < ?", (now - KEPT_SECONDS,))
            execute(
                "DELETE FROM ratings WHERE project_id = ?1 AND number <= (SELECT number FROM ratings"
                " WHERE project_id = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (rating.project_id, MOST_OF_PROJECT),
            )
        return rating

    def page(self, project_id: str, page: Page, *, called: str, rating: str) -> tuple[list[Rating], bool]:
        """Return a page of a project's ratings, and whether more follow; "" filters nothing."""
        order, beyond = ("DESC", "<") if page.newest_first else ("ASC", ">")
        oldest = int(self._clock.now().timestamp()) - KEPT_SECONDS
        with self._turn:
            start = self._number(page.after, project_id) if page.after else None
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} FROM ratings WHERE project_id = :project_id"  # nosec B608
                f" AND created_at >= :oldest AND (:start IS NULL OR number {beyond} :start)"
                " AND (:called = '' OR called = :called OR answered_by = :called)"
                " AND (:rating = '' OR rating = :rating)"
                f" ORDER BY number {order} LIMIT :limit",
                {
                    "project_id": project_id,
                    "oldest": oldest,
                    "start": start,
                    "called": called,
                    "rating": rating,
                    "limit": page.limit + 1,
                },
            ).fetchall()
        return [Rating(*row) for row in rows[: page.limit]], len(rows) > page.limit

    def _number(self, rating_id: str, project_id: str) -> int:
        query = "SELECT number FROM ratings WHERE id = ? AND project_id = ?"
        found = self._connection.execute(query, (rating_id, project_id)).fetchone()
        if found is None:
            raise unknown_after(rating_id)
        return found[0]

    def project_of(self, rating_id: str) -> str:
        """Return the project of a rating; "" where there is none."""
        query = "SELECT project_id FROM ratings WHERE id = ?"
        with self._turn:
            found = self._connection.execute(query, (rating_id,)).fetchone()
        return found[0] if found else ""

    def delete(self, rating_id: str) -> None:
        with self._turn, sqlite_file.transaction(self._connection):
            self._connection.execute("DELETE FROM ratings WHERE id = ?", (rating_id,))

    def close(self) -> None:
        with self._turn:
            self._connection.close()
