"""Rules of exports: what may be exported by whom to where. The right on the source is the server's check of
all that a request names. Pure."""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.compute.v1 import DiskSnapshotStatus, DiskStatus, ImageStatus
from neocloud.messages.neocloud.compute.v1 import DiskExport, DiskExportSpec
from neocloud.services.compute.rules.volumes import find, find_image, missing
from neocloud.services.compute.types import DISK, IMAGE, SNAPSHOT, DiskState
from neocloud.services.storage.public import ObjectLocation, ObjectWrites

MAX_KEY_BYTES = 1024
_KINDS: Mapping[str, str] = {
    "source_image_id": IMAGE,
    "source_disk_snapshot_id": SNAPSHOT,
    "source_disk_id": DISK,
}


def source_of(spec: DiskExportSpec) -> str:
    """Return the id of what is exported; "" for none."""
    field = spec.WhichOneof("source")
    return str(getattr(spec, field)) if field else ""


def destination_of(spec: DiskExportSpec) -> ObjectLocation:
    target = spec.destination_storage
    return ObjectLocation(target.bucket_name, target.object_name)


class DiskExportRules(Rules[DiskExport]):
    def violations(
        self, new: DiskExport, old: DiskExport | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        field, key = new.spec.WhichOneof("source"), new.spec.destination_storage.object_name
        if field is None:
            yield Violation(
                "spec.source_image_id",
                "is required, or source_disk_snapshot_id or source_disk_id: an export has one source",
            )
            return
        row, path = _find(new, field, reader), f"spec.{field}"
        if row is None:
            yield missing(path, _KINDS[field], source_of(new.spec))
        elif row.state not in (DiskState.READY, DiskState.UPDATING):
            yield Violation(path, f"{row.id} is {row.state}; wait until it is READY")
        if key.endswith("/") or len(key.encode()) > MAX_KEY_BYTES:
            yield Violation(
                "spec.destination_storage.object_name",
                f"must be the key of an object, of at most {MAX_KEY_BYTES} bytes, such as golden.qcow2",
            )

    def complete(self, new: DiskExport, old: DiskExport | None, reader: ResourceReader) -> None:
        """Raises ApiError unless the caller may create the object."""
        field = new.spec.WhichOneof("source")
        row = _find(new, field, reader) if old is None and field else None
        if row is None:
            return
        new.status.disk_size_bytes = _size(row)
        writes = reader.provided.find(ObjectWrites)
        if writes is None:
            raise contract.unavailable("This cloud has no object storage to write to.")
        place = destination_of(new.spec)
        reader.write(lambda tx: writes.allow(tx, reader.subject, new.metadata, place))

    def quota_demand(self, resource: DiskExport) -> Mapping[str, int]:
        return {"compute.diskexport.count": 1}


def _find(export: DiskExport, field: str, reader: ResourceReader) -> Resource | None:
    source_id, project = source_of(export.spec), export.metadata.parent_id
    if _KINDS[field] == IMAGE:
        return find_image(reader, source_id, project)
    return find(reader, _KINDS[field], source_id, project)


def _size(row: Resource) -> int:
    if row.kind == IMAGE:
        return ImageStatus.FromString(row.status).min_disk_size_bytes
    if row.kind == SNAPSHOT:
        return DiskSnapshotStatus.FromString(row.status).content_size_bytes
    return DiskStatus.FromString(row.status).size_bytes
