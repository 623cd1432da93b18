"""Which objects a filesystem needs: a volume claim, and its own namespace unless it lies in its owner's."""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.services.compute.resources import ROOT_FILESYSTEM_LABEL, claim_name, claim_namespace

FILESYSTEM_LABEL = "neocloud.dev/filesystem"


@dataclass(frozen=True)
class FilesystemView:
    id: str
    size_bytes: int
    labels: Mapping[str, str]
    owner_id: str

    @property
    def namespace(self) -> str:
        return claim_namespace(self.id, self.labels, self.owner_id)

    @property
    def has_own_namespace(self) -> bool:
        return self.namespace == self.id

    @property
    def claim(self) -> Reference:
        return Reference("PersistentVolumeClaim", self.namespace, claim_name(self.id))

    @property
    def root_filesystem(self) -> str:
        return self.labels.get(ROOT_FILESYSTEM_LABEL, "") if self.owner_id else ""


def render(filesystem: FilesystemView) -> list[KubernetesObject]:
    objects = [_claim(filesystem)]
    if filesystem.has_own_namespace:
        objects.insert(0, _namespace(filesystem))
    return objects


def removal(filesystem: FilesystemView) -> list[Reference]:
    """What goes with the filesystem."""
    if filesystem.has_own_namespace:
        return [filesystem.claim, Reference("Namespace", filesystem.namespace, filesystem.namespace)]
    return [filesystem.claim]


def _namespace(filesystem: FilesystemView) -> KubernetesObject:
    metadata = {"name": filesystem.namespace, "labels": {FILESYSTEM_LABEL: filesystem.id}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _claim(filesystem: FilesystemView) -> KubernetesObject:
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": str(filesystem.size_bytes)}},
    }
    if filesystem.root_filesystem:
        spec["dataSourceRef"] = {
            "apiGroup": "neocloud.dev",
            "kind": "RootFilesystem",
            "name": filesystem.root_filesystem,
        }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": filesystem.claim.name,
            "namespace": filesystem.namespace,
            "labels": {FILESYSTEM_LABEL: filesystem.id},
        },
        "spec": spec,
    }
