"""The volume of a disk, a snapshot or an image: a claim in its own namespace, perhaps begun as a copy."""

from dataclasses import dataclass

from neocloud.engines.base import Reference
from neocloud.engines.manifest import MACHINE_IMAGE, DataSource, Manifest, Namespace, VolumeClaim

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
