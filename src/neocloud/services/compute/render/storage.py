"""The volume claims of disks, snapshots, images and filesystems.

A claim has a namespace of its own, unless it lies in that of the filesystem's owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.engines.base import Reference
from neocloud.engines.manifest import (
    MACHINE_IMAGE,
    ROOT_FILESYSTEM,
    DataSource,
    Manifest,
    Namespace,
    VolumeClaim,
)
from neocloud.services.compute.public import claim_name, claim_namespace
from neocloud.services.compute.types import ROOT_FILESYSTEM_LABEL

NOUN_LABEL = "neocloud.dev/resource"


@dataclass(frozen=True)
class VolumeSource:
    """What a volume begins as a copy of: a machine image by name, or the volume of a resource by its id."""

    machine_image: str = ""
    resource_id: str = ""
    origin_id: str = ""
    """The image or snapshot that this is, whichever form it has."""


@dataclass(frozen=True)
class VolumeView:
    id: str
    """Of the resource; its namespace and its claim have the same name."""
    size_bytes: int
    source: VolumeSource = VolumeSource()

    @property
    def claim(self) -> Reference:
        return claim_of(self.id)


def claim_of(resource_id: str) -> Reference:
    return Reference("PersistentVolumeClaim", resource_id, resource_id)


def volume_objects(volume: VolumeView) -> list[Manifest]:
    labels = {NOUN_LABEL: volume.id}
    claim = VolumeClaim(
        name=volume.id,
        namespace=volume.id,
        labels=labels,
        storage=str(volume.size_bytes),
        data_source=_data_source(volume.source),
    )
    return [Namespace(name=volume.id, labels=labels), claim]


def volume_removal(volume: VolumeView) -> list[Reference]:
    return [volume.claim, Reference("Namespace", volume.id, volume.id)]


def _data_source(source: VolumeSource) -> DataSource | None:
    if source.machine_image:
        return DataSource(MACHINE_IMAGE, source.machine_image)
    if not source.resource_id:
        return None
    claim = claim_of(source.resource_id)
    return DataSource(claim.kind, claim.name, claim.namespace)


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


def filesystem_objects(filesystem: FilesystemView) -> list[Manifest]:
    namespace = [_filesystem_namespace(filesystem)] if filesystem.has_own_namespace else []
    return [*namespace, _filesystem_claim(filesystem)]


def filesystem_removal(filesystem: FilesystemView) -> list[Reference]:
    """What goes with the filesystem."""
    if filesystem.has_own_namespace:
        return [filesystem.claim, Reference("Namespace", filesystem.namespace, filesystem.namespace)]
    return [filesystem.claim]


def _filesystem_namespace(filesystem: FilesystemView) -> Namespace:
    return Namespace(name=filesystem.namespace, labels={FILESYSTEM_LABEL: filesystem.id})


def _filesystem_claim(filesystem: FilesystemView) -> VolumeClaim:
    source = filesystem.root_filesystem
    return VolumeClaim(
        name=filesystem.claim.name,
        namespace=filesystem.namespace,
        labels={FILESYSTEM_LABEL: filesystem.id},
        storage=str(filesystem.size_bytes),
        access_modes=("ReadWriteMany",),
        data_source=DataSource(ROOT_FILESYSTEM, source) if source else None,
    )
