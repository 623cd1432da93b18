"""ConfigMaps and Secrets as folders of files that pods mount.

The content of an object is stored once. Each combination of keys and mode that pods request is a view: a
folder that is mounted whole. An update writes every view again, file by file and each atomically, so running
pods see the new content. A pod that mounts a view may be able to write there, so links in it are replaced and
never followed. Secrets lie on a tmpfs and are never written to disk.
"""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.engines.base import EngineError
from neocloud.engines.manifest import ConfigMapSource, SecretSource, encode, fingerprint
from neocloud.engines.podman.layout import read_record, write_record

DEFAULT_MODE = 0o644
_FOLDER_MODE = 0o755
"""Mode of a view, whatever the umask: programs that are not root read it."""


class ViewRecord(TypedDict):
    """The keys and the mode of a view; `items` is None for all keys."""

    items: list[dict[str, str]] | None
    mode: int
    optional: bool


class ConfigMounts:
    """Stores the objects of one kind below `root/<namespace>/<name>/`. Threads may call it at once."""

    def __init__(self, root: Path, kind: str) -> None:
        self._root = root
        self.kind = kind
        self._writing = threading.RLock()
        """Held while files change: pods that start together mount one view, and what one thread has half
        written looks to another like a file that does not belong there."""

    def names(self, namespace: str) -> list[str]:
        """Return the names of the objects of a namespace."""
        folder = self._root / namespace
        if not folder.is_dir():
            return []
        with Folder.open(folder) as found:
            return found.names()

    def put(self, namespace: str, name: str, contents: Mapping[str, bytes]) -> None:
        """Store the content of an object and update all its views."""
        with self._writing:
            self._put_object(namespace, name, contents)

    def _put_object(self, namespace: str, name: str, contents: Mapping[str, bytes]) -> None:
        folder = self._root / namespace / name
        _fill(folder / "data", contents, 0o600)
        if not (folder / "views").is_dir():
            return
        with Folder.open(folder / "views") as views:
            names = views.names()
        for name in names:
            record = read_record(folder / "views" / name) if name.endswith(".json") else None
            if record:
                self._fill_view(folder / "views" / name.removesuffix(".json"), record, contents)

    def get(self, namespace: str, name: str) -> dict[str, bytes]:
        """Return the content of an object. Raises EngineError if there is none."""
        folder = self._root / namespace / name / "data"
        if not folder.is_dir():
            raise EngineError(
                f"{self.kind} {name} of namespace {namespace} does not exist; apply it before the pod."
            )
        with Folder.open(folder) as data:
            return {key: data.read(key) for key in data.names()}

    def view(self, namespace: str, source: ConfigMapSource | SecretSource) -> Path:
        """Return the folder to mount for a pod's volume source; create it if needed."""
        with self._writing:
            return self._make_view(namespace, source)

    def _make_view(self, namespace: str, source: ConfigMapSource | SecretSource) -> Path:
        name = source.name
        folder = self._root / namespace / name
        if source.optional and not (folder / "data").is_dir():
            self.put(namespace, name, {})
        record: ViewRecord = {
            "items": encode(source.items),
            "mode": DEFAULT_MODE if source.default_mode is None else source.default_mode,
            "optional": source.optional,
        }
        view = folder / "views" / fingerprint(record)
        self._fill_view(view, record, self.get(namespace, name))
        write_record(view.with_suffix(".json"), record)
        return view

    def remove(self, namespace: str, name: str | None = None) -> None:
        """Remove one object, or all of the namespace."""
        folder = self._root / namespace
        with self._writing:
            shutil.rmtree(folder / name if name else folder, ignore_errors=True)

    def _fill_view(self, view: Path, record: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
        items = record["items"]
        if items is None:
            _fill(view, contents, record["mode"])
            return
        chosen: dict[str, bytes] = {}
        for item in items:
            if item["key"] in contents:
                chosen[item["path"]] = contents[item["key"]]
            elif not record["optional"]:
                raise EngineError(
                    f"{self.kind} {view.parent.parent.name} has no key {item['key']!r}, which a pod mounts."
                )
        _fill(view, chosen, record["mode"])


def _fill(path: Path, files: Mapping[str, bytes], mode: int) -> None:
    """Make the folder hold exactly these files; change only what differs."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with Folder.open(path) as folder:
            os.fchmod(folder.descriptor, _FOLDER_MODE)
            _prune(folder, PurePosixPath(), set(files))
            for name, content in files.items():
                _put(folder, PurePosixPath(name), content, mode)
    except OSError as error:
        raise EngineError(
            f"{path} could not be written: {error.strerror or error}; check free space and the owner of the "
            "state folder."
        ) from error


def _prune(folder: Folder, relative: PurePosixPath, kept: set[str]) -> None:
    """Remove files that are not in `kept`; folders stay."""
    for name in folder.names():
        try:
            with folder.pinned(name) as found:
                is_folder = stat.S_ISDIR(os.fstat(found).st_mode)
        except UnsafePath:
            folder.remove(name)
            continue
        if is_folder:
            with folder.folder(name) as inner:
                _prune(inner, relative / name, kept)
        elif str(relative / name) not in kept:
            folder.remove(name)


def _put(folder: Folder, relative: PurePosixPath, content: bytes, mode: int) -> None:
    with contextlib.ExitStack() as opened:
        for part in relative.parts[:-1]:
            folder = opened.enter_context(folder.make(part))
        if not folder.has_file(relative.name) or folder.read(relative.name) != content:
            folder.write(relative.name, content, mode)
