"""ConfigMaps and Secrets as folders of files that pods mount.

The content of an object is kept once; each way in which pods ask for it (which keys, which mode) is a view: a
folder that is mounted whole. An update writes every view again, file by file and each in one step, so running
pods see the new content. Secrets lie on a tmpfs and never reach the disk.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neocloud.engines.base import EngineError
from neocloud.engines.manifests import fingerprint
from neocloud.engines.podman.records import read_record, write_file, write_record

DEFAULT_MODE = 0o644


class Projections:
    """Objects of one kind below `root/<namespace>/<name>/`."""

    def __init__(self, root: Path, kind: str) -> None:
        self._root = root
        self.kind = kind

    def names(self, namespace: str) -> list[str]:
        folder = self._root / namespace
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def put(self, namespace: str, name: str, contents: Mapping[str, bytes]) -> None:
        folder = self._root / namespace / name
        _fill(folder / "data", contents, 0o600)
        for description in (folder / "views").glob("*.json"):
            record = read_record(description)
            if record:
                self._fill_view(description.with_suffix(""), record, contents)

    def get(self, namespace: str, name: str) -> dict[str, bytes]:
        folder = self._root / namespace / name / "data"
        if not folder.is_dir():
            raise EngineError(
                f"{self.kind} {name} of namespace {namespace} does not exist; apply it before the pod."
            )
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def view(self, namespace: str, source: Mapping[str, Any]) -> Path:
        """The folder to mount for a pod's volume source; made if needed."""
        name = source.get("secretName") or source["name"]
        folder = self._root / namespace / name
        if source.get("optional") and not (folder / "data").is_dir():
            self.put(namespace, name, {})
        record = {
            "items": source.get("items"),
            "mode": source.get("defaultMode", DEFAULT_MODE),
            "optional": bool(source.get("optional")),
        }
        view = folder / "views" / fingerprint(record)
        self._fill_view(view, record, self.get(namespace, name))
        write_record(view.with_suffix(".json"), record)
        return view

    def remove(self, namespace: str, name: str | None = None) -> None:
        """Remove one object, or all of the namespace."""
        folder = self._root / namespace
        shutil.rmtree(folder / name if name else folder, ignore_errors=True)

    def _fill_view(self, view: Path, record: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
        items = record["items"]
        if items is None:
            _fill(view, contents, record["mode"])
            return
        chosen = {}
        for item in items:
            if item["key"] in contents:
                chosen[item["path"]] = contents[item["key"]]
            elif not record["optional"]:
                raise EngineError(
                    f"{self.kind} {view.parent.parent.name} has no key {item['key']!r}, "
                    "which a pod wants to mount."
                )
        _fill(view, chosen, record["mode"])


def _fill(folder: Path, files: Mapping[str, bytes], mode: int) -> None:
    """Make the folder hold exactly these files, touching only what differs."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            write_file(path, content, mode)
