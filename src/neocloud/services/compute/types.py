"""The resources of compute: kind names, id prefixes, states, error reasons, and lookups in their specs. Pure.

An attachment of a disk is a reservation in the disk's namespace: the value "read-write" belongs to one
instance, and each read-only attachment has a value of its own. So two instances never write to one disk.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from neocloud.messages.nebius.compute.v1 import (
    AttachedDiskSpec,
    AttachedFilesystemSpec,
    DiskSpec,
    FilesystemSpec,
    InstanceStatus,
)
from neocloud.services.iam.types import CLOUDS_PROJECT_ID

KIB, MIB, GIB = 1024, 1024**2, 1024**3
BLOCK_SIZE_BYTES = 4096
_UNITS = {"size_bytes": 1, "size_kibibytes": KIB, "size_mebibytes": MIB, "size_gibibytes": GIB}


def size_bytes(spec: Any) -> int:
    """The size, whichever unit it was given in; 0 when none was."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * _UNITS[unit] if unit else 0


def gib(size: int) -> int:
    """Whole GiB; a part of one counts as one."""
    return -(-size // GIB)


DISK = "nebius.compute.v1.Disk"
DISK_ID_PREFIX = "computedisk"
DiskType = DiskSpec.DiskType

SNAPSHOT = "nebius.compute.v1.DiskSnapshot"
SNAPSHOT_ID_PREFIX = "computedisksnapshot"

IMAGE = "nebius.compute.v1.Image"
IMAGE_ID_PREFIX = "computeimage"

PUBLIC_IMAGES_PARENT = CLOUDS_PROJECT_ID
"""Where the images that came with the cloud lie; no project that anybody could own."""
PUBLIC_IMAGE_ID_START = f"{IMAGE_ID_PREFIX}-e00-"
"""A hyphen after the routing code marks a well-known id."""

FILESYSTEM = "nebius.compute.v1.Filesystem"
FILESYSTEM_ID_PREFIX = "computefilesystem"
FilesystemType = FilesystemSpec.FilesystemType

RESERVED_LABEL_PREFIX = "neocloud.dev/"
NAMESPACE_LABEL = "neocloud.dev/namespace"
"""On an owned filesystem: the engine namespace its volume lies in, which its owner keeps."""
ROOT_FILESYSTEM_LABEL = "neocloud.dev/root-filesystem"
"""On an owned filesystem: the root file system image that the volume starts as a copy of."""

STEPPED_TYPES = frozenset({"NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3"})
STEP_GIB = 93
"""Disks of these types grow in such steps."""
READ_WRITE = "read-write"


class DiskState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    UPDATING = "UPDATING"
    DELETING = "DELETING"
    ERROR = "ERROR"
    BROKEN = "BROKEN"


class DiskReason(StrEnum):
    """Why a disk, snapshot or image is in ERROR or BROKEN; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"
    VOLUME_LOST = "VolumeLost"
    SOURCE_LOST = "SourceLost"


class FilesystemState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    UPDATING = "UPDATING"
    DELETING = "DELETING"
    ERROR = "ERROR"


class FilesystemReason(StrEnum):
    """Why a filesystem is in ERROR; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"
    VOLUME_LOST = "VolumeLost"


def attachment_namespace(disk_id: str) -> str:
    return f"attachments/{disk_id}"


def disk_attachment(instance_id: str, *, is_read_only: bool) -> str:
    return instance_id if is_read_only else READ_WRITE


def writer(claims: Mapping[str, str]) -> str:
    """The instance that a disk with these claims is attached to for writing; "" for none."""
    return claims.get(READ_WRITE, "")


def readers(claims: Mapping[str, str]) -> list[str]:
    return sorted(holder for value, holder in claims.items() if value != READ_WRITE)


def is_public_image(image_id: str) -> bool:
    return image_id.startswith(PUBLIC_IMAGE_ID_START)


INSTANCE = "nebius.compute.v1.Instance"
INSTANCE_ID_PREFIX = "computeinstance"
InstanceStateEnum = InstanceStatus.InstanceState
AttachMode = AttachedDiskSpec.AttachMode
FilesystemAttachMode = AttachedFilesystemSpec.AttachMode

GPU_CLUSTER = "nebius.compute.v1.GpuCluster"
GPU_CLUSTER_ID_PREFIX = "computegpucluster"

MAINTENANCE_EVENT = "nebius.compute.v1.MaintenanceEvent"
MAINTENANCE_EVENT_ID_PREFIX = "computemaintenance"

BOOT_DEVICE = "boot"
POD_CONTAINER = "machine"


class InstanceState(StrEnum):
    CREATING = "CREATING"
    UPDATING = "UPDATING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DELETING = "DELETING"
    ERROR = "ERROR"


class InstanceReason(StrEnum):
    """Why an instance is in ERROR; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"
    DISK_FAILED = "DiskFailed"
    FILESYSTEM_FAILED = "FilesystemFailed"
    ADDRESS_FAILED = "AddressFailed"
    IDENTITY_FAILED = "IdentityFailed"
    NO_GPU_LEFT = "NoGpuLeft"


class StopReason(StrEnum):
    """Why an instance that should run does not, until somebody starts it."""

    NONE = ""
    GUEST = "guest powered itself off"
    FAILED = "machine failed and its recovery policy says FAIL"
    PREEMPTED = "preempted"


def attached_disks(spec: Any) -> Iterable[tuple[str, Any]]:
    """All disks of an instance's spec with the name of their place: the boot disk first."""
    yield BOOT_DEVICE, spec.boot_disk
    for index, disk in enumerate(spec.secondary_disks):
        yield disk.device_id or f"disk-{index + 1}", disk


def existing_disks(spec: Any) -> dict[str, bool]:
    """Ids of the disks that are attached but not owned; True where only for reading."""
    return {
        disk.existing_disk.id: is_read_only(disk)
        for _, disk in attached_disks(spec)
        if disk.WhichOneof("type") == "existing_disk"
    }


def is_read_only(attached: Any) -> bool:
    """Of an attached disk or filesystem; both number their modes alike."""
    return attached.attach_mode == AttachMode.Value("READ_ONLY")


def hostname(instance_id: str, spec: Any) -> str:
    """As the guest is called in its network; the id where none was given, so that no two are the same."""
    return spec.hostname or instance_id


def namespace(instance_id: str) -> str:
    return instance_id


def pod_name(instance_id: str) -> str:
    return instance_id
