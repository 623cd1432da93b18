"""Contents: the bytes of versions and parts, which copies share.

A content is a blob, or lies in the database when it is small, or is composed of pieces of such contents.
`refs` counts the versions, parts and pieces that use it. An unused content is removed in the same
transaction; its blob goes to `garbage`, from where it is deleted after the commit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.transaction import Transaction


@dataclass(frozen=True)
class NewContent:
    size: int
    blob: str | None
    data_key: bytes
    """Sealed."""
    inline: bytes | None
    """Sealed."""


class Leaf(NamedTuple):
    """A content that is not composed."""

    id: int
    size: int
    blob: str | None
    data_key: bytes
    inline: bytes | None


class Span(NamedTuple):
    """Bytes of a leaf."""

    leaf: Leaf
    start: int
    length: int


class Piece(NamedTuple):
    size: int
    source: int
    source_start: int


_LEAF = "content.id, content.size, content.blob, content.data_key, content.inline"


def add(tx: Transaction, new: NewContent) -> int:
    (number,) = tx.connection.execute(
        "INSERT INTO content (refs, size, blob, data_key, inline) VALUES (1, ?, ?, ?, ?) RETURNING id",
        (new.size, new.blob, new.data_key, new.inline),
    ).fetchone()
    return number


def is_known(connection: Connection, blob: str) -> bool:
    """Return whether a content names a blob, or it is to be deleted."""
    row = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM content WHERE blob = ?)"
        " OR EXISTS (SELECT 1 FROM garbage WHERE blob = ?)",
        (blob, blob),
    ).fetchone()
    return bool(row[0])


def share(tx: Transaction, content: int) -> bool:
    """Add a use of a content; return False where it is gone."""
    return tx.connection.execute("UPDATE content SET refs = refs + 1 WHERE id = ?", (content,)).rowcount == 1


def release(tx: Transaction, content: int) -> None:
    """Use a content once less."""
    (refs, blob) = tx.connection.execute(
        "UPDATE content SET refs = refs - 1 WHERE id = ? RETURNING refs, blob", (content,)
    ).fetchone()
    if refs:
        return
    tx.connection.execute("DELETE FROM content WHERE id = ?", (content,))
    if blob is not None:
        tx.connection.execute("INSERT INTO garbage (content, blob) VALUES (?, ?)", (content, blob))
        tx.has_garbage = True
        return
    sources = tx.connection.execute("SELECT source FROM piece WHERE content = ?", (content,)).fetchall()
    if sources:
        for (source,) in sources:
            release(tx, source)
        tx.connection.execute("DELETE FROM piece WHERE content = ?", (content,))
        tx.connection.execute("DELETE FROM object_part WHERE content = ?", (content,))


def compose(tx: Transaction, pieces: Iterable[Piece]) -> int:
    """Make a content of pieces of leaves that are shared already."""
    (content,) = tx.connection.execute(
        "INSERT INTO content (refs, size) VALUES (1, 0) RETURNING id"
    ).fetchone()
    start = 0
    rows: list[tuple[int, ...]] = []
    for size, source, source_start in pieces:
        if size:
            rows.append((content, start, size, source, source_start))
            start += size
        else:
            release(tx, source)
    tx.connection.executemany("INSERT INTO piece VALUES (?, ?, ?, ?, ?)", rows)
    tx.connection.execute("UPDATE content SET size = ? WHERE id = ?", (start, content))
    return content


def take_pieces(tx: Transaction, content: int) -> list[Piece]:
    """Take a content of one part apart: return its pieces, whose use passes to the caller."""
    rows = tx.connection.execute(
        "SELECT size, source, source_start FROM piece WHERE content = ? ORDER BY start", (content,)
    ).fetchall()
    if not rows:
        (size,) = tx.connection.execute("SELECT size FROM content WHERE id = ?", (content,)).fetchone()
        return [Piece(size, content, 0)]
    tx.connection.execute("DELETE FROM piece WHERE content = ?", (content,))
    tx.connection.execute("DELETE FROM content WHERE id = ?", (content,))
    return [Piece(*row) for row in rows]


def spans(connection: Connection, content: int, first: int, length: int) -> Sequence[Span]:
    """Return where the bytes of a range lie, in order."""
    row = connection.execute(
        f"SELECT {_LEAF} FROM content WHERE id = ? AND data_key IS NOT NULL",  # nosec B608
        (content,),
    ).fetchone()
    if row is not None:
        return [Span(Leaf(*row), first, length)]
    rows = connection.execute(
        f"SELECT piece.start, piece.size, piece.source_start, {_LEAF}"  # nosec B608
        " FROM piece JOIN content ON content.id = piece.source WHERE piece.content = ? AND piece.start < ?"
        " AND piece.start >= coalesce((SELECT max(start) FROM piece WHERE content = ? AND start <= ?), 0)"
        " ORDER BY piece.start",
        (content, first + length, content, first),
    )
    found: list[Span] = []
    for start, size, source_start, *leaf in rows:
        begin, end = max(start, first), min(start + size, first + length)
        if begin < end:
            found.append(Span(Leaf(*leaf), source_start + begin - start, end - begin))
    return found
