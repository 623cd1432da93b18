"""What is legal for a disk snapshot, and when it may go."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import DiskStatus
from neocloud.services.compute.resources.disk import DISK, DiskState
from neocloud.services.compute.rules.disk import unfinished_copies
from neocloud.services.compute.rules.references import find, missing


class SnapshotRules(Rules):
    def violations(self, new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
        if old is None:
            yield from source_disk_violations(new, new.spec.source_disk_id, world)

    def complete(self, new: Any, old: Any | None, world: ResourceReader) -> None:
        disk = world.get(new.spec.source_disk_id)
        if old is None and disk is not None:
            new.status.content_size_bytes = DiskStatus.FromString(disk.status).size_bytes
            new.status.source_cpu_architecture = 1

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"compute.snapshot.count": 1}

    def check_delete(self, resource: Any, world: ResourceReader) -> None:
        check_not_copied(resource, world)


def source_disk_violations(new: Any, disk_id: str, world: ResourceReader) -> Iterable[Violation]:
    """Of a snapshot or an image: the disk must be there to be copied."""
    disk = find(world, DISK, disk_id, new.metadata.parent_id)
    if disk is None:
        yield missing("spec.source_disk_id", DISK, disk_id)
    elif disk.state not in (DiskState.READY, DiskState.UPDATING):
        yield Violation("spec.source_disk_id", f"{disk.id} is {disk.state}; wait until it is READY")


def check_not_copied(resource: Any, world: ResourceReader) -> None:
    copies = unfinished_copies(world, resource.metadata.id, resource.metadata.parent_id)
    if copies:
        names = ", ".join(copies)
        raise contract.bad_state(
            resource.metadata.id, f"{names} is still being made from it. Wait until that is READY."
        )
