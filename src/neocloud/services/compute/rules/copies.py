"""Rules of snapshots and images, the copies of a disk. Pure."""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import DiskSnapshot, DiskStatus, Image, ImageSpec
from neocloud.messages.nebius.compute.v1 import DiskSnapshotStatus as SnapshotStatus
from neocloud.services.compute.rules.volumes import find, missing, unfinished_copies
from neocloud.services.compute.types import DISK, SNAPSHOT, DiskState, is_public_image
from neocloud.services.storage.public import ObjectLocation, ObjectReads


class SnapshotRules(Rules[DiskSnapshot]):
    def violations(
        self, new: DiskSnapshot, old: DiskSnapshot | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is None:
            yield from source_disk_violations(new, new.spec.source_disk_id, reader)

    def complete(self, new: DiskSnapshot, old: DiskSnapshot | None, reader: ResourceReader) -> None:
        disk = reader.get(new.spec.source_disk_id)
        if old is None and disk is not None:
            new.status.content_size_bytes = DiskStatus.FromString(disk.status).size_bytes
            new.status.source_cpu_architecture = SnapshotStatus.AMD64

    def quota_demand(self, resource: DiskSnapshot) -> Mapping[str, int]:
        return {"compute.snapshot.count": 1}

    def check_delete(self, resource: DiskSnapshot, reader: ResourceReader) -> None:
        check_not_copied(resource, reader)


def source_disk_violations(
    new: DiskSnapshot | Image, disk_id: str, reader: ResourceReader
) -> Iterable[Violation]:
    """A snapshot or an image of a disk needs a disk that is ready."""
    disk = find(reader, DISK, disk_id, new.metadata.parent_id)
    if disk is None:
        yield missing("spec.source_disk_id", DISK, disk_id)
    elif disk.state not in (DiskState.READY, DiskState.UPDATING):
        yield Violation("spec.source_disk_id", f"{disk.id} is {disk.state}; wait until it is READY")


def check_not_copied(resource: DiskSnapshot | Image, reader: ResourceReader) -> None:
    copies = unfinished_copies(reader, resource.metadata.id, resource.metadata.parent_id)
    if copies:
        names = ", ".join(copies)
        raise contract.bad_state(
            resource.metadata.id, f"{names} is still being copied from it. Wait until that is READY."
        )


_ARM64 = ImageSpec.ARM64
MAX_KEY_BYTES = 1024


def _object_violations(new: Image, reader: ResourceReader) -> Iterable[Violation]:
    """Raises ApiError unless the caller may read the object."""
    source = new.spec.source_storage
    key = source.object_name
    if not source.bucket_name:
        yield Violation("spec.source_storage.bucket_name", "is required: a bucket of this project")
    elif not key or key.endswith("/") or len(key.encode()) > MAX_KEY_BYTES:
        yield Violation(
            "spec.source_storage.object_name",
            f"must be the key of an object, of at most {MAX_KEY_BYTES} bytes: a qcow2 or raw disk",
        )
    else:
        place, reads = ObjectLocation(source.bucket_name, key), reader.provided.find(ObjectReads)
        if reads is None:
            raise contract.unavailable("This cloud has no object storage to read from.")
        reader.write(lambda tx: reads.allow(tx, reader.subject, new.metadata, place))


class ImageRules(Rules[Image]):
    def violations(self, new: Image, old: Image | None, reader: ResourceReader) -> Iterable[Violation]:
        spec = new.spec
        if old is not None:
            return
        if spec.cpu_architecture == _ARM64:
            yield Violation("spec.cpu_architecture", "ARM64 is not offered here; use AMD64")
        kind = spec.WhichOneof("source")
        if kind == "source_disk_id":
            yield from source_disk_violations(new, spec.source_disk_id, reader)
        elif kind == "source_disk_snapshot_id":
            snapshot = find(reader, SNAPSHOT, spec.source_disk_snapshot_id, new.metadata.parent_id)
            if snapshot is None:
                yield missing("spec.source_disk_snapshot_id", SNAPSHOT, spec.source_disk_snapshot_id)
            elif snapshot.state != "READY":
                yield Violation(
                    "spec.source_disk_snapshot_id", f"{snapshot.id} is {snapshot.state}, not READY"
                )
        elif kind == "source_storage":
            yield from _object_violations(new, reader)
        else:
            yield Violation(
                "spec.source_disk_id",
                "is required, or source_disk_snapshot_id or source_storage: an image copies one",
            )

    def complete(self, new: Image, old: Image | None, reader: ResourceReader) -> None:
        if old is not None:
            return
        kind = new.spec.WhichOneof("source")
        row = reader.get(getattr(new.spec, kind)) if kind != "source_storage" else None
        if row is None:
            return
        if kind == "source_disk_id":
            size = DiskStatus.FromString(row.status).size_bytes
        else:
            size = SnapshotStatus.FromString(row.status).content_size_bytes
        new.status.min_disk_size_bytes = size  # the reconciler knows how much is stored

    def quota_demand(self, resource: Image) -> Mapping[str, int]:
        return {"compute.image.count": 1}

    def check_delete(self, resource: Image, reader: ResourceReader) -> None:
        if is_public_image(resource.metadata.id):
            raise contract.bad_state(
                resource.metadata.id, "This image came with the cloud. `neo image` on the machine removes it."
            )

        check_not_copied(resource, reader)
