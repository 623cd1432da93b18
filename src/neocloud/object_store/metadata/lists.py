"""Pages of objects, versions and uploads: by prefix, with common prefixes up to a delimiter.

A page costs about as much as it returns: what lies under a common prefix, or behind many versions of a key,
is skipped by the index.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from neocloud.object_store import conditions as rules
from neocloud.object_store.metadata import uploads, versions
from neocloud.object_store.metadata.connection import Connection, Row
from neocloud.object_store.metadata.transaction import BucketRow
from neocloud.object_store.metadata.uploads import UploadRow
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.types import ListPage, Part, PartPage, UploadPage, VersionPage

_Row = TypeVar("_Row", VersionRow, UploadRow)
_Fetch = Callable[[bytes, int | None, int], Iterator[Row]]
"""Returns at most so many rows from a key on; with a number, only those of this key that follow it, and then
those of the next keys."""
_OfKey = Callable[[bytes, int, int], Iterator[Row]]
_FromKey = Callable[[bytes, int], Iterator[Row]]
_FETCHED_FOR_PREFIXES = 32


@dataclass(frozen=True)
class Selection:
    """The selection of a page; all in UTF-8."""

    prefix: bytes
    delimiter: bytes
    limit: int

    @property
    def fetched(self) -> int:
        """Return how many rows are asked for at first. A common prefix may skip all but one of them."""
        return min(self.limit + 1, _FETCHED_FOR_PREFIXES) if self.delimiter else self.limit + 1

    def common_prefix(self, key: bytes) -> bytes | None:
        if not self.delimiter:
            return None
        at = key.find(self.delimiter, len(self.prefix))
        return None if at < 0 else key[: at + len(self.delimiter)]

    def first_key(self, marker: bytes) -> bytes:
        """Return from where keys may be on the page that follows a key or a common prefix."""
        if marker and marker.startswith(self.prefix) and self.common_prefix(marker) == marker:
            return _after(marker)
        return max(self.prefix, marker + b"\0" if marker else b"")


def selection(prefix: str, delimiter: str, limit: int) -> Selection:
    """Raises InvalidKey, InvalidRequest."""
    return Selection(rules.encode(prefix), rules.encode(delimiter), rules.check_limit(limit))


def part_page(found: Sequence[Part], limit: int) -> PartPage:
    """Return the first parts; `found` has one more than the limit where another page follows."""
    parts = tuple(found[:limit])
    is_truncated = len(found) > limit > 0
    return PartPage(parts, is_truncated, parts[-1].number if is_truncated else 0)


@dataclass(frozen=True)
class _Page(Generic[_Row]):
    rows: list[_Row]
    prefixes: list[bytes]
    next: "_Row | bytes | None"
    """The last row or common prefix; None on the last page."""

    @property
    def common_prefixes(self) -> tuple[str, ...]:
        return tuple(each.decode() for each in self.prefixes)

    @property
    def next_key(self) -> str:
        if self.next is None:
            return ""
        return (self.next if isinstance(self.next, bytes) else self.next.key).decode()


def objects(connection: Connection, bucket: BucketRow, selection: Selection, start_after: bytes) -> ListPage:
    def fetch(key: bytes, after: int | None, limit: int) -> Iterator[Row]:
        return connection.execute(
            f"SELECT {versions.COLUMNS} FROM version INDEXED BY version_listed"  # nosec B608
            " WHERE bucket = ? AND key >= ? AND is_latest = 1 AND is_marker = 0 ORDER BY key LIMIT ?",
            (bucket.number, key if after is None else key + b"\0", limit),
        )

    first = selection.first_key(start_after)
    page = _page(selection, fetch(first, None, selection.fetched), fetch, VersionRow._make)
    found = tuple(versions.show(row, bucket) for row in page.rows)
    return ListPage(found, page.common_prefixes, page.next is not None, page.next_key)


def all_versions(
    connection: Connection,
    bucket: BucketRow,
    selection: Selection,
    key_marker: bytes,
    version_marker: str,
) -> VersionPage:
    """Raises NoSuchVersion where the marker cannot be the id of a version."""

    def of_key(key: bytes, after: int, limit: int) -> Iterator[Row]:
        where = "key = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
        return _versions(connection, where, bucket.number, key, after, limit)

    def from_key(key: bytes, limit: int) -> Iterator[Row]:
        return _versions(connection, "key >= ? ORDER BY key, seq DESC LIMIT ?", bucket.number, key, limit)

    fetch = _fetching(of_key, from_key)
    first = selection.first_key(key_marker)
    marked = version_marker and versions.by_id(connection, bucket.number, key_marker, version_marker)
    position = (key_marker, marked.seq) if marked else None
    start = _rest(of_key, from_key, position, first, selection.fetched)
    page = _page(selection, start, fetch, VersionRow._make)
    return VersionPage(
        tuple(versions.show(row, bucket) for row in page.rows),
        page.common_prefixes,
        page.next is not None,
        page.next_key,
        page.next.version_id if isinstance(page.next, VersionRow) else "",
    )


def all_uploads(
    connection: Connection,
    bucket: BucketRow,
    selection: Selection,
    key_marker: bytes,
    upload_marker: str,
) -> UploadPage:
    def of_key(key: bytes, after: int, limit: int) -> Iterator[Row]:
        where = "bucket = ? AND key = ? AND number > ? ORDER BY number LIMIT ?"
        return uploads.select(connection, where, bucket.number, key, after, limit)

    def from_key(key: bytes, limit: int) -> Iterator[Row]:
        where = "bucket = ? AND key >= ? ORDER BY key, number LIMIT ?"
        return uploads.select(connection, where, bucket.number, key, limit)

    fetch = _fetching(of_key, from_key)
    first = selection.first_key(key_marker)
    marked = uploads.by_id(connection, upload_marker) if key_marker and upload_marker else None
    position = None if marked is None else (key_marker, marked.number)
    start = _rest(of_key, from_key, position, first, selection.fetched)
    page = _page(selection, start, fetch, UploadRow._make)
    return UploadPage(
        tuple(row.upload() for row in page.rows),
        page.common_prefixes,
        page.next is not None,
        page.next_key,
        page.next.id if isinstance(page.next, UploadRow) else "",
    )


def _versions(connection: Connection, where: str, *values: object) -> Iterator[Row]:
    query = f"SELECT {versions.COLUMNS} FROM version WHERE bucket = ? AND {where}"  # nosec B608
    return connection.execute(query, values)


def _fetching(of_key: _OfKey, from_key: _FromKey) -> _Fetch:
    def fetch(key: bytes, after: int | None, limit: int) -> Iterator[Row]:
        if after is None:
            return from_key(key, limit)
        return _rest(of_key, from_key, (key, after), key + b"\0", limit)

    return fetch


def _rest(
    of_key: _OfKey, from_key: _FromKey, position: tuple[bytes, int] | None, next_key: bytes, limit: int
) -> Iterator[Row]:
    """Yield what follows a position in its key, if there is one, then what follows from the next key on."""
    if position is not None:
        for row in of_key(*position, limit):
            limit -= 1
            yield row
    if limit > 0:
        yield from from_key(next_key, limit)


def _page(
    selection: Selection,
    start: Iterator[Row],
    fetch: _Fetch,
    make: Callable[[Row], _Row],
) -> _Page[_Row]:
    """Gather a page. `start` are the first rows that may follow, as many as `selection` says at most."""
    page: _Page[_Row] = _Page([], [], None)
    if selection.limit == 0:
        return page
    last: _Row | bytes | None = None
    fetched = selection.fetched
    while True:
        left, row, common = fetched, None, None
        for values in start:
            left -= 1
            row = make(values)
            if not row.key.startswith(selection.prefix):
                return page
            if len(page.rows) + len(page.prefixes) == selection.limit:
                return _Page(page.rows, page.prefixes, last)
            common = selection.common_prefix(row.key)
            if common is not None:
                page.prefixes.append(common)
                last = common
                break
            page.rows.append(row)
            last = row
        start = iter(())  # SQLite compiles a statement again while it is in use
        if common is not None:
            fetched = selection.fetched
            start = fetch(_after(common), None, fetched)
        elif row is None or left > 0:
            return page
        else:
            fetched = min(fetched * 4, selection.limit + 1)
            start = fetch(row.key, row[0], fetched)


def _after(prefix: bytes) -> bytes:
    """Return what comes after all keys with this prefix; no byte of UTF-8 is the highest there is."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
