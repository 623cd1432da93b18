"""Pages of versions for an inventory, each after a position: what was listed is never listed again."""

from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.metadata import versions
from neocloud.object_store.metadata.transaction import BucketRow
from neocloud.object_store.metadata.versions import VersionRow

PAGE = 1000


@dataclass(frozen=True)
class Position:
    """The last version that was listed."""

    key: bytes = b""
    """b"": nothing was listed."""
    seq: int = 0


@dataclass(frozen=True)
class Selection:
    prefix: bytes
    has_noncurrent: bool
    """Whether noncurrent versions and delete markers are listed, too."""

    @property
    def end(self) -> bytes:
        """Return what comes after all keys with the prefix; no byte of UTF-8 is the highest there is."""
        return self.prefix[:-1] + bytes([self.prefix[-1] + 1]) if self.prefix else b"\xff"


def page(
    engine: Engine, bucket: BucketRow, selection: Selection, after: Position, limit: int
) -> Sequence[VersionRow]:
    """Return the next versions by key, the newest of a key first."""
    first = max(selection.prefix, after.key + b"\0" if after.key else b"")
    if not selection.has_noncurrent:
        where = "INDEXED BY version_listed WHERE bucket = ? AND key >= ? AND key < ?"
        where += " AND is_latest = 1 AND is_marker = 0 ORDER BY key LIMIT ?"
        return _select(engine, where, bucket.number, first, selection.end, limit)
    found: list[VersionRow] = []
    if after.key:
        where = "WHERE bucket = ? AND key = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
        found += _select(engine, where, bucket.number, after.key, after.seq, limit)
    where = "WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key, seq DESC LIMIT ?"
    return found + _select(engine, where, bucket.number, first, selection.end, limit - len(found))


def _select(engine: Engine, where: str, *values: object) -> list[VersionRow]:
    query = f"SELECT {versions.COLUMNS} FROM version {where}"  # nosec B608
    return [VersionRow._make(row) for row in engine.database.reading.execute(query, values)]
