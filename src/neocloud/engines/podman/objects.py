"""Manifests as they were last applied, one JSON file each.

They tell what a pod is (labels, probes, policy) after a restart of the server; whether it runs is always
asked of Podman. Secrets and ConfigMaps are not kept here.
"""

from pathlib import Path

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.records import read_record, write_record


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
