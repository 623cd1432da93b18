# pyright: strict
"""When versions were last read: gathered in memory, and written along with a later commit.

One read of a version is written per day (UTC), which is what the rules count in. What is not written when the
process dies is lost; a lost read can change a storage class too early and never deletes anything.
"""

import threading
from collections.abc import Sequence
from itertools import islice

from neocloud.object_store.metadata.connection import Connection

DAY_MS = 86_400_000
MOST_WAITING = 100_000
"""Versions whose reads wait for a commit. While so many wait, as with a full disk, other reads are lost."""
MOST_IN_A_COMMIT = 2000
"""They delay what is written with them, by some tens of milliseconds."""
_SINCE = "last-access-since"
Taken = Sequence[tuple[int, int, int]]
"""The time, the number of the version, and the time again."""


class Accesses:
    """Noted in the thread of the event loop, taken in the writer thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        self._lock = threading.Lock()
        self._has_failed = False

    @property
    def commits(self) -> int:
        """Return how many commits will have taken what waits now."""
        waiting = len(self._waiting)
        return -(-waiting // MOST_IN_A_COMMIT) + int(self._has_failed and waiting > 0)

    def note(self, seq: int, accessed_ms: int | None, now_ms: int) -> bool:
        """Remember a read of a version; return whether something waits for a commit now. `accessed_ms` is the
        last read that is written."""
        if accessed_ms is not None and accessed_ms // DAY_MS >= now_ms // DAY_MS:
            return False
        with self._lock:
            if seq not in self._waiting and len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting[seq] = now_ms
        return True

    def take(self) -> Taken:
        """Take what goes with the next commit. After a commit that failed, the next one goes without: reads
        must not keep a full disk from being emptied."""
        if self._has_failed:
            self._has_failed = False
            return ()
        with self._lock:
            taken = list(islice(self._waiting.items(), MOST_IN_A_COMMIT))
            for seq, _ in taken:
                del self._waiting[seq]
        return [(at_ms, seq, at_ms) for seq, at_ms in sorted(taken)]

    def put_back(self, taken: Taken) -> None:
        """The commit failed."""
        self._has_failed = bool(taken)
        with self._lock:
            for at_ms, seq, _ in taken[: MOST_WAITING - len(self._waiting)]:
                self._waiting.setdefault(seq, at_ms)


def write(connection: Connection, taken: Taken) -> None:
    """Write reads of versions that are still there."""
    if taken:
        connection.executemany(
            "UPDATE version SET accessed_ms = ? WHERE seq = ? AND coalesce(accessed_ms, 0) < ?", taken
        )


def tracked_since_ms(connection: Connection) -> int:
    """Return since when reads are written; 0: since the first object."""
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (_SINCE,)).fetchone()
    return 0 if row is None else int(row[0])
