# pyright: strict
"""Manifests as they were last applied, one JSON file each.

They tell what a pod is (labels, probes, policy) after a restart of the server; whether it runs is always
asked of Podman. Secrets and ConfigMaps are not kept here.

Small JSON files that survive the server: written whole or not at all.
"""

import json
from pathlib import Path
from typing import Any

from neocloud.core import osfiles
from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.podman.layout import Layout


class Objects:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def put(self, manifest: KubernetesObject) -> None:
        path = self._path(Reference.of(manifest))
        if read_record(path) != manifest:
            write_record(path, manifest)

    def get(self, reference: Reference) -> KubernetesObject | None:
        return read_record(self._path(reference))

    def remove(self, reference: Reference) -> None:
        self._path(reference).unlink(missing_ok=True)

    def all(self, kind: str) -> list[KubernetesObject]:
        """Those of every namespace."""
        folder = self._layout.namespaces
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [manifest for name in names for manifest in self.list(name, kind)]

    def list(self, namespace: str, kind: str) -> list[KubernetesObject]:
        folder = self._folder(namespace, kind)
        found = [read_record(path) for path in sorted(folder.glob("*.json"))]
        return [manifest for manifest in found if manifest]

    def _folder(self, namespace: str, kind: str) -> Path:
        return self._layout.namespace(namespace) / "objects" / kind

    def _path(self, reference: Reference) -> Path:
        return self._folder(reference.namespace, reference.kind) / f"{reference.name}.json"


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, None when there is none or only half of one from before a crash."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def write_record(path: Path, record: dict[str, Any]) -> None:
    write_file(path, json.dumps(record, sort_keys=True).encode(), 0o600)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file in one step, so that a reader sees the old or the new content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        osfiles.write_file(path, content, mode)
    except OSError as error:
        raise EngineError(
            f"{path} could not be written: {error.strerror}; check free space and the owner of the "
            "state folder."
        ) from error
