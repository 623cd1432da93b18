"""Boot disk, secondary disks, filesystems. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.services.compute.resources.disk import DISK, DiskState
from neocloud.services.compute.resources.filesystem import FILESYSTEM, RESERVED_LABEL_PREFIX, find_filesystem
from neocloud.services.compute.resources.instance import attached_disks, is_read_only
from neocloud.services.compute.rules.disk_spec import disk_spec_violations
from neocloud.services.compute.rules.references import find, missing

MAX_SECONDARY_DISKS = 16
MAX_FILESYSTEMS = 8
_BROKEN = frozenset({DiskState.DELETING, DiskState.ERROR, DiskState.BROKEN})


def storage_violations(new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    if is_read_only(spec.boot_disk):
        yield Violation("spec.boot_disk.attach_mode", "must be READ_WRITE: the machine writes its boot disk")
    if len(spec.secondary_disks) > MAX_SECONDARY_DISKS:
        yield Violation("spec.secondary_disks", f"must be at most {MAX_SECONDARY_DISKS}")
    if len(spec.filesystems) > MAX_FILESYSTEMS:
        yield Violation("spec.filesystems", f"must be at most {MAX_FILESYSTEMS}")
    fields = ["spec.boot_disk", *(f"spec.secondary_disks[{i}]" for i in range(len(spec.secondary_disks)))]
    for (_, attached), field in zip(attached_disks(spec), fields, strict=True):
        yield from _disk_violations(new, old, attached, field, world)
    yield from _twice(spec)
    for index, attached in enumerate(spec.filesystems):
        yield from _filesystem_violations(new, attached, f"spec.filesystems[{index}]", world)


def _disk_violations(
    new: Any, old: Any | None, attached: Any, field: str, world: ResourceReader
) -> Iterable[Violation]:
    kind, parent_id = attached.WhichOneof("type"), new.metadata.parent_id
    if kind is None:
        yield Violation(field, "needs an existing_disk or a managed_disk")
    elif kind == "existing_disk":
        disk = find(world, DISK, attached.existing_disk.id, parent_id)
        if disk is None or (disk.owner_id and disk.owner_id != new.metadata.id):
            yield missing(f"{field}.existing_disk.id", DISK, attached.existing_disk.id)
        elif disk.state in _BROKEN:
            yield Violation(f"{field}.existing_disk.id", f"{disk.id} is {disk.state} and cannot be attached")
    else:
        before = _managed_before(old, attached.managed_disk.name)
        spec = before.spec if before is not None else None
        yield from disk_spec_violations(
            attached.managed_disk.spec, spec, f"{field}.managed_disk.spec", parent_id, world
        )
        yield from _name_violations(new, attached.managed_disk, field, world, is_new=before is None)


def _managed_before(old: Any | None, name: str) -> Any | None:
    for _, attached in attached_disks(old.spec) if old is not None else ():
        if attached.WhichOneof("type") == "managed_disk" and attached.managed_disk.name == name:
            return attached.managed_disk
    return None


def _name_violations(
    new: Any, managed: Any, field: str, world: ResourceReader, *, is_new: bool
) -> Iterable[Violation]:
    for label in managed.labels:
        if label.startswith(RESERVED_LABEL_PREFIX):
            yield Violation(
                f"{field}.managed_disk.labels", f"{RESERVED_LABEL_PREFIX} labels are the cloud's own"
            )
    taken = world.find(DISK, new.metadata.parent_id, managed.name) if is_new else None
    if taken is not None:
        yield Violation(
            f"{field}.managed_disk.name", f'"{managed.name}" is the name of {taken.id}; choose another'
        )


def _twice(spec: Any) -> Iterable[Violation]:
    places = Counter(place for place, _ in attached_disks(spec))
    disks = Counter(
        attached.existing_disk.id or f"managed {attached.managed_disk.name}"
        for _, attached in attached_disks(spec)
    )
    for place in (place for place, count in places.items() if count > 1):
        yield Violation("spec.secondary_disks", f'two disks have the device_id "{place}"')
    for disk in (disk for disk, count in disks.items() if count > 1):
        yield Violation("spec.secondary_disks", f"{disk} is attached twice")
    tags = Counter(attached.mount_tag for attached in spec.filesystems)
    for tag in (tag for tag, count in tags.items() if count > 1):
        yield Violation("spec.filesystems", f'two filesystems have the mount_tag "{tag}"')


def _filesystem_violations(new: Any, attached: Any, field: str, world: ResourceReader) -> Iterable[Violation]:
    if attached.WhichOneof("type") is None:
        yield Violation(field, "needs an existing_filesystem")
        return
    identifier = attached.existing_filesystem.id
    row = find_filesystem(world, identifier, new.metadata.parent_id)
    if row is None:
        yield missing(f"{field}.existing_filesystem.id", FILESYSTEM, identifier)
    elif row.state in ("ERROR", "DELETING"):
        yield Violation(f"{field}.existing_filesystem.id", f"{row.id} is {row.state} and cannot be attached")
