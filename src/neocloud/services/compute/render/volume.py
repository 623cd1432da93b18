"""The volume of a disk, a snapshot or an image: a claim in its own namespace, perhaps begun as a copy."""

from dataclasses import dataclass

from neocloud.engines.base import KubernetesObject, Reference

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


def volume_objects(volume: VolumeView) -> list[KubernetesObject]:
    labels = {NOUN_LABEL: volume.id}
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(volume.size_bytes)}},
    }
    if volume.source.machine_image or volume.source.resource_id:
        spec["dataSourceRef"] = _data_source(volume.source)
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": volume.id, "labels": labels}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": volume.id, "namespace": volume.id, "labels": labels},
            "spec": spec,
        },
    ]


def volume_removal(volume: VolumeView) -> list[Reference]:
    return [volume.claim, Reference("Namespace", volume.id, volume.id)]


def _data_source(source: VolumeSource) -> dict[str, str]:
    if source.machine_image:
        return {"apiGroup": "neocloud.dev", "kind": "MachineImage", "name": source.machine_image}
    claim = claim_of(source.resource_id)
    return {"kind": claim.kind, "namespace": claim.namespace, "name": claim.name}
