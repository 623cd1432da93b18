"""Which objects a filesystem needs: a volume claim, and its own namespace unless it lies in its owner's."""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.engines.base import Reference
from neocloud.engines.manifest import ROOT_FILESYSTEM, DataSource, Manifest, Namespace, VolumeClaim
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


def render(filesystem: FilesystemView) -> list[Manifest]:
    namespace = [_namespace(filesystem)] if filesystem.has_own_namespace else []
    return [*namespace, _claim(filesystem)]


def removal(filesystem: FilesystemView) -> list[Reference]:
    """What goes with the filesystem."""
    if filesystem.has_own_namespace:
        return [filesystem.claim, Reference("Namespace", filesystem.namespace, filesystem.namespace)]
    return [filesystem.claim]


def _namespace(filesystem: FilesystemView) -> Namespace:
    return Namespace(name=filesystem.namespace, labels={FILESYSTEM_LABEL: filesystem.id})


def _claim(filesystem: FilesystemView) -> VolumeClaim:
    source = filesystem.root_filesystem
    return VolumeClaim(
        name=filesystem.claim.name,
        namespace=filesystem.namespace,
        labels={FILESYSTEM_LABEL: filesystem.id},
        storage=str(filesystem.size_bytes),
        access_modes=("ReadWriteMany",),
        data_source=DataSource(ROOT_FILESYSTEM, source) if source else None,
    )
