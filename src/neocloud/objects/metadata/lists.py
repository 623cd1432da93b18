# pyright: strict
"""Pages of objects, versions and uploads: by prefix, with common prefixes up to a delimiter.

A page costs about as much as it returns: what lies under a common prefix, or behind many versions of a key,
is skipped by the index.
"""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from neocloud.objects.metadata import rows, uploads, versions
from neocloud.objects.metadata.rows import VersionRow
from neocloud.objects.metadata.transaction import BucketRow
from neocloud.objects.metadata.uploads import UploadRow
from neocloud.objects.types import ListPage, UploadPage, VersionPage

_Row = TypeVar("_Row", VersionRow, UploadRow)


@dataclass(frozen=True)
class Selection:
    """What a page is of; all in UTF-8."""

    prefix: bytes
    delimiter: bytes
    limit: int

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


def objects(
    connection: sqlite3.Connection, bucket: BucketRow, selection: Selection, start_after: bytes
) -> ListPage:
    def fetch(key: bytes) -> Iterator[tuple[Any, ...]]:
        return connection.execute(
            f"SELECT {rows.COLUMNS} FROM version INDEXED BY version_listed"  # nosec B608
            " WHERE bucket = ? AND key >= ? AND is_latest = 1 AND is_marker = 0 ORDER BY key",
            (bucket.number, key),
        )

    page = _page(selection, fetch(selection.first_key(start_after)), fetch, VersionRow._make)
    found = tuple(versions.show(row, bucket) for row in page.rows)
    return ListPage(found, page.common_prefixes, page.next is not None, page.next_key)


def all_versions(
    connection: sqlite3.Connection,
    bucket: BucketRow,
    selection: Selection,
    key_marker: bytes,
    version_marker: str,
) -> VersionPage:
    """Raises NoSuchVersion where the marker cannot be the id of a version."""

    def fetch(key: bytes) -> Iterator[tuple[Any, ...]]:
        return _versions(connection, "key >= ? ORDER BY key, seq DESC", bucket.number, key)

    start = fetch(selection.first_key(key_marker))
    marked = version_marker and versions.by_id(connection, bucket.number, key_marker, version_marker)
    if marked:
        where = "key = ? AND seq < ? ORDER BY seq DESC"
        start = chain(_versions(connection, where, bucket.number, key_marker, marked.seq), start)
    page = _page(selection, start, fetch, VersionRow._make)
    return VersionPage(
        tuple(versions.show(row, bucket) for row in page.rows),
        page.common_prefixes,
        page.next is not None,
        page.next_key,
        page.next.version_id if isinstance(page.next, VersionRow) else "",
    )


def all_uploads(
    connection: sqlite3.Connection,
    bucket: BucketRow,
    selection: Selection,
    key_marker: bytes,
    upload_marker: str,
) -> UploadPage:
    def fetch(key: bytes) -> Iterator[tuple[Any, ...]]:
        return uploads.select(connection, "bucket = ? AND key >= ? ORDER BY key, number", bucket.number, key)

    start = fetch(selection.first_key(key_marker))
    marked = uploads.by_id(connection, upload_marker) if key_marker and upload_marker else None
    if marked is not None:
        where = "bucket = ? AND key = ? AND number > ? ORDER BY number"
        rest = uploads.select(connection, where, bucket.number, key_marker, marked.number)
        start = chain(rest, start)
    page = _page(selection, start, fetch, UploadRow._make)
    return UploadPage(
        tuple(row.upload() for row in page.rows),
        page.common_prefixes,
        page.next is not None,
        page.next_key,
        page.next.id if isinstance(page.next, UploadRow) else "",
    )


def _versions(connection: sqlite3.Connection, where: str, *values: object) -> Iterator[tuple[Any, ...]]:
    query = f"SELECT {rows.COLUMNS} FROM version WHERE bucket = ? AND {where}"  # nosec B608
    return connection.execute(query, values)


def _page(
    selection: Selection,
    start: Iterator[tuple[Any, ...]],
    fetch: Callable[[bytes], Iterator[tuple[Any, ...]]],
    make: Callable[[tuple[Any, ...]], _Row],
) -> _Page[_Row]:
    """Gather a page. `start` are all rows that may follow; `fetch` returns those from a key on."""
    page: _Page[_Row] = _Page([], [], None)
    if selection.limit == 0:
        return page
    last: _Row | bytes | None = None
    while True:
        for values in start:
            row = make(values)
            if not row.key.startswith(selection.prefix):
                return page
            if len(page.rows) + len(page.prefixes) == selection.limit:
                return _Page(page.rows, page.prefixes, last)
            common = selection.common_prefix(row.key)
            if common is not None:
                page.prefixes.append(common)
                last, start = common, fetch(_after(common))
                break
            page.rows.append(row)
            last = row
        else:
            return page


def _after(prefix: bytes) -> bytes:
    """Return what comes after all keys with this prefix; no byte of UTF-8 is the highest there is."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
