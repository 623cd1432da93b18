"""Rules of what an instance attaches: disks, filesystems, and its network interface. Pure."""

from collections import Counter
from collections.abc import Iterable

from neocloud.core import contract
from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.compute.v1 import (
    AttachedDiskSpec,
    AttachedFilesystemSpec,
    Instance,
    InstanceSpec,
    ManagedDisk,
    NetworkInterfaceSpec,
)
from neocloud.messages.nebius.vpc.v1 import AllocationSpec, AllocationStatus, SecurityGroupSpec, SubnetSpec
from neocloud.services.compute.public import filesystem_attachment, find_filesystem
from neocloud.services.compute.rules.volumes import attached_to, disk_spec_violations, find, missing
from neocloud.services.compute.types import (
    DISK,
    FILESYSTEM,
    RESERVED_LABEL_PREFIX,
    DiskState,
    InstanceStateEnum,
    attached_disks,
    attachment_namespace,
    disk_attachment,
    existing_disks,
    is_read_only,
    readers,
    writer,
)
from neocloud.services.vpc.types import ALLOCATION, SECURITY_GROUP, SUBNET, assignment_namespace

MAX_SECONDARY_DISKS = 16
MAX_FILESYSTEMS = 8
_BROKEN = frozenset({DiskState.DELETING, DiskState.ERROR, DiskState.BROKEN})


def storage_violations(new: Instance, old: Instance | None, reader: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    if is_read_only(spec.boot_disk):
        yield Violation("spec.boot_disk.attach_mode", "must be READ_WRITE: the machine writes its boot disk")
    if len(spec.secondary_disks) > MAX_SECONDARY_DISKS:
        yield Violation("spec.secondary_disks", f"must be at most {MAX_SECONDARY_DISKS}")
    if len(spec.filesystems) > MAX_FILESYSTEMS:
        yield Violation("spec.filesystems", f"must be at most {MAX_FILESYSTEMS}")
    fields = ["spec.boot_disk", *(f"spec.secondary_disks[{i}]" for i in range(len(spec.secondary_disks)))]
    for (_, attached), field in zip(attached_disks(spec), fields, strict=True):
        yield from _disk_violations(new, old, attached, field, reader)
    yield from _duplicate_violations(spec)
    for index, attached in enumerate(spec.filesystems):
        yield from _filesystem_violations(new, attached, f"spec.filesystems[{index}]", reader)


def acquire_storage(new: Instance, old: Instance | None, reader: ResourceReader) -> None:
    """Reserve the instance's disks and filesystems. A stopped instance releases those that it no longer
    attaches; one with a machine keeps them until the machine has really released them.

    Raises ApiError when another instance holds a disk, so two instances with one disk are never both created.
    """
    instance_id = new.metadata.id
    desired = existing_disks(new.spec)
    is_off = old is not None and old.status.state == InstanceStateEnum.Value("STOPPED")
    for disk_id, was_reading in existing_disks(old.spec).items() if old is not None and is_off else ():
        if desired.get(disk_id) != was_reading:
            _release(reader, disk_id, instance_id)
    for disk_id, only_reads in desired.items():
        _acquire(reader, disk_id, instance_id, is_read_only=only_reads)
    _attach_filesystems(reader, new, old)


def _disk_violations(
    new: Instance, old: Instance | None, attached: AttachedDiskSpec, field: str, reader: ResourceReader
) -> Iterable[Violation]:
    kind, parent_id = attached.WhichOneof("type"), new.metadata.parent_id
    if kind is None:
        yield Violation(field, "needs an existing_disk or a managed_disk")
    elif kind == "existing_disk":
        disk = find(reader, DISK, attached.existing_disk.id, parent_id)
        if disk is None or (disk.owner_id and disk.owner_id != new.metadata.id):
            yield missing(f"{field}.existing_disk.id", DISK, attached.existing_disk.id)
        elif disk.state in _BROKEN:
            yield Violation(f"{field}.existing_disk.id", f"{disk.id} is {disk.state} and cannot be attached")
    else:
        before = _managed_before(old, attached.managed_disk.name)
        spec = before.spec if before is not None else None
        yield from disk_spec_violations(
            attached.managed_disk.spec, spec, f"{field}.managed_disk.spec", parent_id, reader
        )
        yield from _name_violations(new, attached.managed_disk, field, reader, is_new=before is None)


def _managed_before(old: Instance | None, name: str) -> ManagedDisk | None:
    for _, attached in attached_disks(old.spec) if old is not None else ():
        if attached.WhichOneof("type") == "managed_disk" and attached.managed_disk.name == name:
            return attached.managed_disk
    return None


def _name_violations(
    new: Instance, managed: ManagedDisk, field: str, reader: ResourceReader, *, is_new: bool
) -> Iterable[Violation]:
    for label in managed.labels:
        if label.startswith(RESERVED_LABEL_PREFIX):
            yield Violation(
                f"{field}.managed_disk.labels", f"{RESERVED_LABEL_PREFIX} labels are set by the cloud"
            )
    taken = reader.find(DISK, new.metadata.parent_id, managed.name) if is_new else None
    if taken is not None:
        yield Violation(
            f"{field}.managed_disk.name",
            f"is {managed.name!r}, the name of the disk {taken.id}; choose another",
        )


def _duplicate_violations(spec: InstanceSpec) -> Iterable[Violation]:
    devices = Counter(device for device, _ in attached_disks(spec))
    disks = Counter(
        attached.existing_disk.id or f"managed {attached.managed_disk.name}"
        for _, attached in attached_disks(spec)
    )
    for device in (device for device, count in devices.items() if count > 1):
        yield Violation("spec.secondary_disks", f'two disks have the device_id "{device}"')
    for disk in (disk for disk, count in disks.items() if count > 1):
        yield Violation("spec.secondary_disks", f"{disk} is attached twice")
    tags = Counter(attached.mount_tag for attached in spec.filesystems)
    for tag in (tag for tag, count in tags.items() if count > 1):
        yield Violation("spec.filesystems", f'two filesystems have the mount_tag "{tag}"')


def _filesystem_violations(
    new: Instance, attached: AttachedFilesystemSpec, field: str, reader: ResourceReader
) -> Iterable[Violation]:
    if attached.WhichOneof("type") is None:
        yield Violation(field, "needs an existing_filesystem")
        return
    identifier = attached.existing_filesystem.id
    row = find_filesystem(reader, identifier, new.metadata.parent_id)
    if row is None:
        yield missing(f"{field}.existing_filesystem.id", FILESYSTEM, identifier)
    elif row.state in ("ERROR", "DELETING"):
        yield Violation(f"{field}.existing_filesystem.id", f"{row.id} is {row.state} and cannot be attached")


def _acquire(reader: ResourceReader, disk_id: str, instance_id: str, *, is_read_only: bool) -> None:
    namespace = attachment_namespace(disk_id)
    reservations = reader.reservations(namespace)
    others = {writer(reservations), *(() if is_read_only else readers(reservations))} - {"", instance_id}
    value = disk_attachment(instance_id, is_read_only=is_read_only)
    if others or not reader.reserve(namespace, value, instance_id):
        disk = reader.get(disk_id)
        raise contract.bad_state(
            disk_id,
            f'Disk "{disk.name if disk else disk_id}" is attached to'
            f" {attached_to(reader, sorted(others), '--secondary-disks')}"
            " A disk is written by one instance at a time; several may attach it for reading only.",
        )


def _attach_filesystems(reader: ResourceReader, new: Instance, old: Instance | None) -> None:
    """Reserve an attachment of each filesystem, which many instances may have."""
    instance_id = new.metadata.id
    for attached in old.spec.filesystems if old is not None else ():
        _release(reader, attached.existing_filesystem.id, instance_id)
    for attached in new.spec.filesystems:
        value = filesystem_attachment(instance_id, is_read_only=is_read_only(attached))
        reader.reserve(attachment_namespace(attached.existing_filesystem.id), value, instance_id)


def _release(reader: ResourceReader, storage_id: str, instance_id: str) -> None:
    namespace = attachment_namespace(storage_id)
    for value, holder in reader.reservations(namespace).items():
        if holder == instance_id:
            reader.release(namespace, value)


INTERFACE = "spec.network_interfaces[0]"


def interface_violations(new: Instance, old: Instance | None, reader: ResourceReader) -> Iterable[Violation]:
    interfaces, parent_id = new.spec.network_interfaces, new.metadata.parent_id
    if len(interfaces) > 1:
        yield Violation("spec.network_interfaces", "one interface is offered here; leave the others out")
        return
    for interface in interfaces:
        subnet = find(reader, SUBNET, interface.subnet_id, parent_id)
        if subnet is None and old is None:
            yield missing(f"{INTERFACE}.subnet_id", SUBNET, interface.subnet_id)
        if interface.aliases:
            yield Violation(f"{INTERFACE}.aliases", "address aliases are not offered here; leave them out")
        yield from _allocation_violations(new, interface, subnet, reader)
        yield from _security_group_violations(interface, subnet, parent_id, reader)


def _allocation_violations(
    new: Instance, interface: NetworkInterfaceSpec, subnet: Resource | None, reader: ResourceReader
) -> Iterable[Violation]:
    requested = (
        ("ip_address", interface.ip_address.allocation_id, "ipv4_private"),
        ("public_ip_address", interface.public_ip_address.allocation_id, "ipv4_public"),
    )
    for name, identifier, kind in requested:
        if not identifier:
            continue
        field = f"{INTERFACE}.{name}.allocation_id"
        row = find(reader, ALLOCATION, identifier, new.metadata.parent_id)
        if row is None or (row.owner_id and row.owner_id != new.metadata.id):
            yield missing(field, ALLOCATION, identifier)
            continue
        spec = AllocationSpec.FromString(row.spec)
        holder = next(iter(reader.reservations(assignment_namespace(identifier)).values()), "")
        if spec.WhichOneof("ip_spec") != kind:
            yield Violation(field, f"{identifier} is not a {kind.removeprefix('ipv4_')} address")
        elif holder and holder != new.metadata.id:
            yield Violation(field, f"{identifier} is in use by {holder}; take it from there first")
        elif kind == "ipv4_private" and subnet is not None and _subnet_of(row) not in ("", subnet.id):
            yield Violation(field, f"{identifier} is an address of another subnet")


def _subnet_of(allocation: Resource) -> str:
    details = AllocationStatus.FromString(allocation.status).details
    return details.subnet_id or AllocationSpec.FromString(allocation.spec).ipv4_private.subnet_id


def _security_group_violations(
    interface: NetworkInterfaceSpec, subnet: Resource | None, parent_id: str, reader: ResourceReader
) -> Iterable[Violation]:
    for index, group in enumerate(interface.security_groups):
        field = f"{INTERFACE}.security_groups[{index}].id"
        row = find(reader, SECURITY_GROUP, group.id, parent_id)
        if row is None:
            yield missing(field, SECURITY_GROUP, group.id)
        elif subnet is not None:
            network = SubnetSpec.FromString(subnet.spec).network_id
            if SecurityGroupSpec.FromString(row.spec).network_id != network:
                yield Violation(field, f"{group.id} belongs to another network than the subnet")
