"""What is legal for a disk, and when it may go."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import DiskSnapshotSpec as SnapshotSpec
from neocloud.messages.nebius.compute.v1 import DiskSpec, ImageSpec
from neocloud.services.compute.resources.disk import DISK, IMAGE, SNAPSHOT, DiskType, attachment_namespace
from neocloud.services.compute.resources.sizes import size_bytes
from neocloud.services.compute.rules.disk_spec import disk_spec_violations, source


class DiskRules(Rules):
    def violations(self, new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
        yield from disk_spec_violations(
            new.spec, old.spec if old else None, "spec", new.metadata.parent_id, world
        )

    def complete(self, new: Any, old: Any | None, world: ResourceReader) -> None:
        """A family is what was asked for; which image it meant is a fact from the first moment on."""
        row = source(new.spec, new.metadata.parent_id, world) if old is None else None
        if row is not None and new.spec.WhichOneof("source") != "source_snapshot_id":
            new.status.source_image_id = row.id

    def dependents(self, resource: Any) -> Iterable[str]:
        """Those who use it: they tell their guests of its size."""
        yield resource.status.read_write_attachment
        yield from resource.status.read_only_attachments

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        kind = DiskType.Name(resource.spec.type).lower().replace("_", "-")
        return {"compute.disk.count": 1, f"compute.disk.size.{kind}": size_bytes(resource.spec)}

    def check_delete(self, resource: Any, world: ResourceReader) -> None:
        disk = resource.metadata
        holders = sorted(set(world.reservations(attachment_namespace(disk.id)).values()))
        if holders:
            raise contract.bad_state(
                disk.id,
                f'Disk "{disk.name}" is attached to {", ".join(holders)}. Detach it there first.',
            )
        if resource.spec.forbid_deletion:
            raise contract.bad_state(
                disk.id,
                f'Disk "{disk.name}" is protected against deletion. Set spec.forbid_deletion to false first.',
            )
        copies = unfinished_copies(world, disk.id, disk.parent_id)
        if copies:
            raise contract.bad_state(
                disk.id, f"{', '.join(copies)} still copies it. Wait until that is READY."
            )


def unfinished_copies(world: ResourceReader, source_id: str, parent_id: str) -> list[str]:
    """Disks, snapshots and images that are being made from this resource."""
    found = []
    for kind, spec in ((SNAPSHOT, SnapshotSpec), (IMAGE, ImageSpec), (DISK, DiskSpec)):
        for row in world.list(kind, parent_id):
            if row.state == "CREATING" and source_id in _sources(spec.FromString(row.spec)):
                found.append(row.id)
    return found


def _sources(spec: Any) -> list[str]:
    names = ("source_disk_id", "source_disk_snapshot_id", "source_snapshot_id", "source_image_id")
    return [getattr(spec, name, "") for name in names]
