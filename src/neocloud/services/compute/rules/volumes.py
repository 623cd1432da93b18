"""Rules of disks, created alone or with an instance, and of filesystems; lookups of what a spec names.
Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.compute.v1 import (
    Disk,
    DiskSpec,
    Filesystem,
    FilesystemSpec,
    ImageSpec,
    ImageStatus,
    SourceImageFamily,
)
from neocloud.messages.nebius.compute.v1 import DiskSnapshotSpec as SnapshotSpec
from neocloud.messages.nebius.compute.v1 import DiskSnapshotStatus as SnapshotStatus
from neocloud.messages.neocloud.compute.v1 import DiskExportSpec
from neocloud.services.compute.public import holder_name
from neocloud.services.compute.types import (
    BLOCK_SIZE_BYTES,
    DISK,
    DISK_EXPORT,
    GIB,
    IMAGE,
    INSTANCE,
    PUBLIC_IMAGES_PARENT,
    RESERVED_LABEL_PREFIX,
    SNAPSHOT,
    STEP_GIB,
    STEPPED_TYPES,
    DiskType,
    FilesystemType,
    attachment_namespace,
    is_public_image,
    size_bytes,
)
from neocloud.services.storage.types import BUCKET


def find(reader: ResourceReader, kind: str, resource_id: str, parent_id: str) -> Resource | None:
    """Return the resource if it is of this kind and project and is not being deleted."""
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == parent_id and not row.deleted_at
    return row if is_there else None


def missing(field: str, kind: str, resource_id: str) -> Violation:
    """Return the same violation for a missing resource and for one of another project."""
    noun = kind.rpartition(".")[2]
    return Violation(field, f'there is no {noun} "{resource_id}" in this project; check the id')


def attached_to(reader: ResourceReader, holders: Sequence[str], option: str) -> str:
    """Return who holds an attachment, by kind and name, and how to detach it from an instance or a bucket."""
    rows = [(holder, reader.get(holder)) for holder in holders]
    names = ", ".join(
        f"{holder_name(row)} ({holder})" if row and row.name else holder for holder, row in rows
    )
    found = next((row.name for _, row in rows if row and row.kind == INSTANCE and row.name), "")
    bucket = next((row.name for _, row in rows if row and row.kind == BUCKET), "")
    if not found and bucket:
        return (
            f"{names}. Delete the bucket first, its files stay: `neo storage bucket delete {quote(bucket)}`."
        )
    if not found:
        return f"{names or 'another instance'}. Detach it there first."
    first = quote(found)
    if option == "--secondary-disks":
        return (
            f"{names}. Detach it first: `neo compute instance update {first} {option}` with those that stay."
        )
    return (
        f"{names}. Detach it first: `neo compute instance stop {first}`, then `neo compute instance update"
        f" {first} {option}` with those that stay."
    )


class DiskRules(Rules[Disk]):
    def violations(self, new: Disk, old: Disk | None, reader: ResourceReader) -> Iterable[Violation]:
        yield from disk_spec_violations(
            new.spec, old.spec if old else None, "spec", new.metadata.parent_id, reader
        )

    def complete(self, new: Disk, old: Disk | None, reader: ResourceReader) -> None:
        """Store the image that the requested family resolves to, so that a newer image does not change it."""
        row = source(new.spec, new.metadata.parent_id, reader) if old is None else None
        if row is not None and new.spec.WhichOneof("source") != "source_snapshot_id":
            new.status.source_image_id = row.id

    def dependents(self, resource: Disk) -> Iterable[str]:
        """Instances that attach the disk report its size to their guests."""
        yield resource.status.read_write_attachment
        yield from resource.status.read_only_attachments

    def quota_demand(self, resource: Disk) -> Mapping[str, int]:
        kind = DiskType.Name(resource.spec.type).lower().replace("_", "-")
        return {"compute.disk.count": 1, f"compute.disk.size.{kind}": size_bytes(resource.spec)}

    def check_delete(self, resource: Disk, reader: ResourceReader) -> None:
        disk = resource.metadata
        holders = sorted(set(reader.reservations(attachment_namespace(disk.id)).values()))
        if holders:
            raise contract.bad_state(
                disk.id,
                f'Disk "{disk.name}" is attached to {attached_to(reader, holders, "--secondary-disks")}',
            )
        if resource.spec.forbid_deletion:
            raise contract.bad_state(
                disk.id,
                f'Disk "{disk.name}" is protected against deletion. Set spec.forbid_deletion to false first.',
            )
        copies = unfinished_copies(reader, disk.id, disk.parent_id)
        if copies:
            raise contract.bad_state(
                disk.id, f"{', '.join(copies)} still copies it. Wait until that is READY."
            )


def unfinished_copies(reader: ResourceReader, source_id: str, parent_id: str) -> list[str]:
    """Return the ids of disks, snapshots, images and exports that are being copied from this resource."""
    found: list[str] = []
    for kind, spec in _COPIES:
        for row in reader.list(kind, parent_id):
            if row.state == "CREATING" and source_id in _sources(spec.FromString(row.spec)):
                found.append(row.id)
    return found


_COPIES = ((SNAPSHOT, SnapshotSpec), (IMAGE, ImageSpec), (DISK, DiskSpec), (DISK_EXPORT, DiskExportSpec))


def _sources(spec: DiskSpec | ImageSpec | SnapshotSpec | DiskExportSpec) -> list[str]:
    names = ("source_disk_id", "source_disk_snapshot_id", "source_snapshot_id", "source_image_id")
    return [getattr(spec, name, "") for name in names]


MAX_SIZE_BYTES = 256 * 1024 * GIB
MAX_BLOCK_SIZE_BYTES = 128 * 1024


def disk_spec_violations(
    new: DiskSpec, old: DiskSpec | None, field: str, parent_id: str, reader: ResourceReader
) -> Iterable[Violation]:
    """Return what is wrong with the spec of a disk; `field` is its path in the request, e.g. "spec"."""
    found = list(_size_violations(new, old, field))
    yield from found
    block = new.block_size_bytes
    if block and not (BLOCK_SIZE_BYTES <= block <= MAX_BLOCK_SIZE_BYTES and block & (block - 1) == 0):
        yield Violation(
            f"{field}.block_size_bytes",
            f"must be a power of 2 from {BLOCK_SIZE_BYTES} to {MAX_BLOCK_SIZE_BYTES}, or left out",
        )
    if old is not None and new.disk_encryption.type != old.disk_encryption.type:
        yield Violation(f"{field}.disk_encryption", "cannot be changed; create a disk from a snapshot of it")
    if old is None:
        yield from _source_violations(new, field, parent_id, reader, is_size_known=not found)


def source(spec: DiskSpec, parent_id: str, reader: ResourceReader) -> Resource | None:
    """Return the image or snapshot that a disk starts as a copy of; None without one or if none is found."""
    kind = spec.WhichOneof("source")
    if kind == "source_image_id":
        return find_image(reader, spec.source_image_id, parent_id)
    if kind == "source_image_family":
        return latest_image(reader, spec.source_image_family, parent_id)
    if kind == "source_snapshot_id":
        return find(reader, SNAPSHOT, spec.source_snapshot_id, parent_id)
    return None


def find_image(reader: ResourceReader, image_id: str, parent_id: str) -> Resource | None:
    owner = PUBLIC_IMAGES_PARENT if is_public_image(image_id) else parent_id
    return find(reader, IMAGE, image_id, owner)


def latest_image(reader: ResourceReader, family: SourceImageFamily, parent_id: str) -> Resource | None:
    """Return the newest ready image of a family: of the named project, else of the public images."""
    if family.parent_id not in ("", PUBLIC_IMAGES_PARENT, parent_id):
        return None
    return newest_of_family(reader.list(IMAGE, family.parent_id or PUBLIC_IMAGES_PARENT), family.image_family)


def newest_of_family(images: Iterable[Resource], family: str) -> Resource | None:
    ready = [row for row in images if row.state == "READY" and not row.deleted_at]
    of_family = [row for row in ready if ImageSpec.FromString(row.spec).image_family == family]
    return max(of_family, key=lambda row: (row.created_at, row.name), default=None)


def min_size_bytes(row: Resource) -> int:
    """Return the minimum size of a disk for a copy of this image or snapshot."""
    if row.kind == IMAGE:
        return ImageStatus.FromString(row.status).min_disk_size_bytes
    return SnapshotStatus.FromString(row.status).content_size_bytes


def _size_violations(new: DiskSpec, old: DiskSpec | None, field: str) -> Iterable[Violation]:
    size, unit = size_bytes(new), new.WhichOneof("size") or "size_gibibytes"
    kind = DiskType.Name(new.type) if new.type in DiskType.values() else ""
    step = STEP_GIB * GIB
    if not 0 < size <= MAX_SIZE_BYTES:
        yield Violation(f"{field}.{unit}", f"must be more than 0 and at most {MAX_SIZE_BYTES // GIB} GiB")
    elif size % BLOCK_SIZE_BYTES:
        yield Violation(f"{field}.{unit}", f"must be a multiple of {BLOCK_SIZE_BYTES} bytes")
    elif kind in STEPPED_TYPES and size % step:
        right = -(-size // step) * STEP_GIB
        yield Violation(
            f"{field}.{unit}", f"must be a multiple of {STEP_GIB} GiB for {kind}, e.g. {right} GiB"
        )
    elif old is not None and size < size_bytes(old):
        yield Violation(f"{field}.{unit}", f"a disk cannot shrink; it has {size_bytes(old) / GIB:g} GiB")


def _source_violations(
    spec: DiskSpec, field: str, parent_id: str, reader: ResourceReader, *, is_size_known: bool
) -> Iterable[Violation]:
    kind = spec.WhichOneof("source")
    if kind is None:
        return
    row = source(spec, parent_id, reader)
    if row is None and kind == "source_image_family":
        family = spec.source_image_family
        where = "of this project" if family.parent_id == parent_id else "that comes with this cloud"
        yield Violation(
            f"{field}.source_image_family.image_family",
            f'there is no image {where} in family "{family.image_family}"; '
            "`neo image build machine` builds those that come with the cloud",
        )
    elif row is None:
        noun = SNAPSHOT if kind == "source_snapshot_id" else IMAGE
        yield missing(f"{field}.{kind}", noun, getattr(spec, kind))
    elif row.state != "READY":
        yield Violation(f"{field}.{kind}", f"{row.id} is {row.state}; wait until it is READY")
    elif is_size_known and size_bytes(spec) < min_size_bytes(row):
        unit = spec.WhichOneof("size")
        yield Violation(
            f"{field}.{unit}",
            f"must be at least {min_size_bytes(row) / GIB:g} GiB, the size of {row.name or row.id}",
        )


MAX_FILESYSTEM_BYTES = 1024 * 1024 * GIB
SERVED_TYPES = ("NETWORK_SSD",)


class FilesystemRules(Rules[Filesystem]):
    def quota_demand(self, resource: Filesystem) -> Mapping[str, int]:
        kind = FilesystemType.Name(resource.spec.type).lower().replace("_", "-")
        return {"compute.filesystem.count": 1, f"compute.filesystem.size.{kind}": size_bytes(resource.spec)}

    def violations(
        self, new: Filesystem, old: Filesystem | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        yield from _filesystem_size_violations(new.spec, old.spec if old else None)
        yield from _label_violations(new.metadata.labels, old.metadata.labels if old else {})
        if FilesystemType.Name(new.spec.type) not in SERVED_TYPES:
            yield Violation("spec.type", f"is not offered here; choose from: {', '.join(SERVED_TYPES)}")
        if new.spec.block_size_bytes not in (0, BLOCK_SIZE_BYTES):
            yield Violation("spec.block_size_bytes", f"must be {BLOCK_SIZE_BYTES}, or left out")

    def check_delete(self, resource: Filesystem, reader: ResourceReader) -> None:
        holders = sorted(set(reader.reservations(attachment_namespace(resource.metadata.id)).values()))
        if holders:
            raise contract.bad_state(
                resource.metadata.id,
                f'Filesystem "{resource.metadata.name}" is attached to '
                f"{attached_to(reader, holders, '--filesystems')}",
            )
        if resource.spec.forbid_deletion:
            raise contract.bad_state(
                resource.metadata.id,
                f'Filesystem "{resource.metadata.name}" is protected against deletion. '
                "Set spec.forbid_deletion to false first.",
            )


def _filesystem_size_violations(new: FilesystemSpec, old: FilesystemSpec | None) -> Iterable[Violation]:
    size, unit = size_bytes(new), new.WhichOneof("size") or "size_gibibytes"
    if not 0 < size <= MAX_FILESYSTEM_BYTES:
        yield Violation(f"spec.{unit}", f"must be more than 0 and at most {MAX_FILESYSTEM_BYTES // GIB} GiB")
    elif old is not None and size < size_bytes(old):
        yield Violation(f"spec.{unit}", f"a filesystem cannot shrink; it has {size_bytes(old) / GIB:g} GiB")


def _label_violations(new: Mapping[str, str], old: Mapping[str, str]) -> Iterable[Violation]:
    """Labels with our prefix decide the namespace of a volume; only services set them, on what they own."""
    for key in {*new, *old}:
        if key.startswith(RESERVED_LABEL_PREFIX) and new.get(key) != old.get(key):
            yield Violation(
                f'metadata.labels["{key}"]', f"{RESERVED_LABEL_PREFIX} labels are set by the cloud"
            )
