"""Pages of the keys of a bucket, in the order of S3: by the bytes of the whole key. Blocking.

In this order a directory comes where its name with the slash does: "a.txt" is before "a/b". The order of
Python's text, by code points, is that of UTF-8. The memory of a page is bounded, and so are the names that it
looks at: a page may end early, and the next one continues there.
"""

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from neocloud.core.untrusted.files import Folder
from neocloud.object_store.backends.files import records
from neocloud.object_store.backends.files.files import is_object
from neocloud.object_store.backends.files.paths import file_path, is_listed
from neocloud.object_store.errors import InvalidRequest, ObjectStoreError
from neocloud.object_store.types import MAX_KEY_BYTES, MAX_PAGE, ListPage, ObjectVersion

MAX_FOLDER_NAMES = 1_000_000
"""Names in one directory that is listed."""
MAX_PAGE_NAMES = 4_000_000
"""Names that one page looks at, with those of the directories on its way."""
EARLY_NAMES = 200_000
"""A page that has looked at so many names ends before it enters another directory."""
EARLY_KEYS = 50_000
"""A page that has passed so many keys ends: with a delimiter, many may be of one common prefix."""
_SHALLOW, _SHALLOW_NAMES, _DEEP_NAMES = 8, MAX_PAGE + 1, 64
"""Names of a directory that are held at a time: fewer in deep ones, of which many are open at a time."""


_LAST = "\U0010ffff"
"""The last character: what begins with a common prefix is before the prefix with it."""


@dataclass(frozen=True)
class Selection:
    prefix: str
    delimiter: str
    after: str
    limit: int


@dataclass(frozen=True)
class _ListedKey:
    key: str
    version: ObjectVersion | None
    """None: it is a common prefix."""


class _Ended(Exception):
    """The page ends early; the next one continues after `marker`."""

    def __init__(self, marker: str) -> None:
        super().__init__(marker)
        self.marker = marker


def page(root: Folder | None, selection: Selection) -> ListPage:
    """Raises InvalidRequest where a directory has too many names, OSError."""
    if root is None or not selection.limit:
        return ListPage((), (), False, "")
    objects: list[ObjectVersion] = []
    prefixes: list[str] = []
    last = ""
    try:
        for found in _Walk(root, selection).found():
            if len(objects) + len(prefixes) == selection.limit:
                return ListPage(tuple(objects), tuple(prefixes), True, last)
            last = found.key
            if found.version is None:
                prefixes.append(found.key)
            else:
                objects.append(found.version)
    except _Ended as end:
        return ListPage(tuple(objects), tuple(prefixes), True, end.marker)
    return ListPage(tuple(objects), tuple(prefixes), False, "")


class _Walk:
    def __init__(self, root: Folder, selection: Selection) -> None:
        self._root = root
        self._prefix = selection.prefix
        self._delimiter = selection.delimiter
        self._after = selection.after
        self._names = 0
        self._done = ""
        """The common prefix that the page before ended with."""
        if selection.after and self._common_prefix(selection.after) == selection.after:
            self._done = selection.after
            self._after += _LAST

    def found(self) -> Iterator[_ListedKey]:
        base, _, _ = self._prefix.rpartition("/")
        if base and not _is_path(base):
            return
        keys = self._below(f"{base}/" if base else "", 0, is_own=True)
        if self._delimiter in ("", "/"):
            yield from keys
        else:
            yield from self._rolled_up(keys)

    def _common_prefix(self, key: str) -> str:
        """Return what a key is shown as; "": as itself."""
        end = key.find(self._delimiter, len(self._prefix)) if self._delimiter not in ("", "/") else -1
        return key[: end + len(self._delimiter)] if end >= 0 else ""

    def _rolled_up(self, keys: Iterator[_ListedKey]) -> Iterator[_ListedKey]:
        """Yield common prefixes in place of their keys."""
        last = ""
        try:
            for passed, found in enumerate(keys):
                rolled = self._common_prefix(found.key)
                if not rolled:
                    yield found
                elif rolled not in (last, self._done):
                    yield _ListedKey(rolled, None)
                last = rolled
                if passed >= EARLY_KEYS:
                    raise _Ended(found.key)
        except _Ended as end:
            is_shown = last and end.marker.startswith(last) and last != self._done
            raise _Ended(last if is_shown else end.marker) from None

    def _below(self, path: str, depth: int, *, is_own: bool = False) -> Iterator[_ListedKey]:
        """Yield what is below a directory, and with `is_own` the directory itself."""
        try:
            folder = self._root.folder(path or ".")
        except OSError:  # it is gone, or something else
            return
        with folder:
            if path and self._is_wanted(path) and is_object(folder):
                own = records.version(path, folder.descriptor, os.fstat(folder.descriptor))
                yield _ListedKey(path, own)
        if not is_own and path > self._after and self._names > EARLY_NAMES:
            raise _Ended(path)
        for name in self._sorted(path, depth):
            key = path + name
            if not name.endswith("/"):
                version = self._file(key) if self._is_wanted(key) else None
                if version is not None:
                    yield _ListedKey(key, version)
            elif self._delimiter == "/" and len(key) > len(self._prefix):
                is_behind = key <= self._after and (key == self._after or not self._after.startswith(key))
                if not is_behind:
                    yield _ListedKey(key, None)
            else:
                yield from self._below(key, depth + 1)

    def _is_wanted(self, key: str) -> bool:
        return key > self._after and key.startswith(self._prefix)

    def _file(self, key: str) -> ObjectVersion | None:
        try:
            with self._root.pinned(key) as pinned:
                state = os.fstat(pinned)
                return records.version(key, pinned, state) if stat.S_ISREG(state.st_mode) else None
        except OSError:  # it is gone, or something else
            return None

    def _sorted(self, path: str, depth: int) -> Iterator[str]:
        """Yield the names of a directory in order, those of directories with a slash, as far as they are of
        the page."""
        size = _SHALLOW_NAMES if depth < _SHALLOW else _DEEP_NAMES
        low, is_included = self._lowest(path)
        while True:
            names = heapq.nsmallest(size + 1, self._names_of(path, low, is_included=is_included))
            yield from names[:size]
            if len(names) <= size:
                return
            low, is_included = names[size - 1], False

    def _lowest(self, path: str) -> tuple[str, bool]:
        """Return the first name that can have a key after the marker, and whether it is one itself."""
        if not self._after.startswith(path):
            return "", True
        name, slash, _ = self._after[len(path) :].partition("/")
        return name + slash, bool(slash)

    def _names_of(self, path: str, low: str, *, is_included: bool) -> Iterator[str]:
        start = self._prefix[len(path) :] if self._prefix.startswith(path) else ""
        seen = 0
        try:
            folder = self._root.folder(path or ".")
        except OSError:  # it is gone, or something else
            return
        with folder, os.scandir(folder.descriptor) as entries:
            for entry in entries:
                seen += 1
                self._names += 1
                if seen > MAX_FOLDER_NAMES or self._names > MAX_PAGE_NAMES:
                    raise InvalidRequest(
                        f"A directory with more than {MAX_FOLDER_NAMES:,} files, or too many of such"
                        " directories within each other, cannot be listed. List another prefix."
                    )
                if not is_listed(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    name = f"{entry.name}/"
                elif entry.is_file(follow_symlinks=False):
                    name = entry.name
                else:
                    continue
                is_after = name >= low if is_included else name > low
                if is_after and name.startswith(start) and len((path + name).encode()) <= MAX_KEY_BYTES:
                    yield name


def _is_path(base: str) -> bool:
    if base.endswith("/"):
        return False
    try:
        file_path(base)
    except ObjectStoreError:
        return False
    return True
