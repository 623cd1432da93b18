"""The kinds of compute with their id prefixes, states and error reasons, what their specs say, and the
runtime state of an instance. Pure.

An attachment of a disk is a reservation in the disk's namespace: the value "read-write" belongs to one
instance, and each read-only attachment has its own value. So two instances never write to the same disk.

The runtime state is what neither an instance's spec nor the engine holds, stored beside the instance.
`stop_reason`: why the instance does not run although it should. Only a start clears it, so a guest that
powered itself off stays off when the server or the host restarts. `pod_spec`: the pod as it was when it was
started; a new version of this program must not replace the pods of running instances. `disk_limits`: what
its machine enforced when it was last looked at, for those who read a disk. `detaching`: the disks that
its guest keeps although they are to be detached.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import KubernetesObject
from neocloud.messages.nebius.compute.v1 import (
    AttachedDiskSpec,
    AttachedFilesystemSpec,
    DiskSpec,
    FilesystemSpec,
    InstanceSpec,
    InstanceStatus,
)
from neocloud.services.compute.disk_limits import DiskLimits, parse_limits
from neocloud.services.iam.types import CLOUDS_PROJECT_ID

KIB, MIB, GIB = 1024, 1024**2, 1024**3
BLOCK_SIZE_BYTES = 4096
_UNITS = {"size_bytes": 1, "size_kibibytes": KIB, "size_mebibytes": MIB, "size_gibibytes": GIB}


def size_bytes(spec: DiskSpec | FilesystemSpec) -> int:
    """Return the size in bytes, whichever unit the spec has; 0 without a size."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * _UNITS[unit] if unit else 0


def gib(size: int) -> int:
    """Return whole GiB, rounded up."""
    return -(-size // GIB)


DISK = "nebius.compute.v1.Disk"
DISK_ID_PREFIX = "computedisk"
DiskType = DiskSpec.DiskType

SNAPSHOT = "nebius.compute.v1.DiskSnapshot"
SNAPSHOT_ID_PREFIX = "computedisksnapshot"

IMAGE = "nebius.compute.v1.Image"
IMAGE_ID_PREFIX = "computeimage"

DISK_EXPORT = "neocloud.compute.v1.DiskExport"
DISK_EXPORT_ID_PREFIX = "computediskexport"

PUBLIC_IMAGES_PARENT = CLOUDS_PROJECT_ID
"""The parent of the images that came with the cloud: a project that nobody owns."""
PUBLIC_IMAGE_ID_START = f"{IMAGE_ID_PREFIX}-e00-"
"""A hyphen after the routing code marks a well-known id."""

FILESYSTEM = "nebius.compute.v1.Filesystem"
FILESYSTEM_ID_PREFIX = "computefilesystem"
FilesystemType = FilesystemSpec.FilesystemType

RESERVED_LABEL_PREFIX = "neocloud.dev/"
NAMESPACE_LABEL = "neocloud.dev/namespace"
"""On an owned filesystem: the engine namespace of its volume, which its owner creates and removes."""
ROOT_FILESYSTEM_LABEL = "neocloud.dev/root-filesystem"
"""On an owned filesystem: the root file system image that the volume starts as a copy of."""

STEPPED_TYPES = frozenset({"NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3"})
STEP_GIB = 93
"""The sizes of disks of these types are multiples of this."""
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
    KEY_LOST = "KeyLost"
    SOURCE_UNREADABLE = "SourceUnreadable"
    """The object that an image is made from is gone, or may not be read by who made the image."""
    SOURCE_REFUSED = "SourceRefused"
    """It is not a disk, or one that would read other files."""
    EXPORT_REFUSED = "ExportRefused"
    """The disk is empty, damaged or too large to be exported."""
    EXPORT_UNWRITABLE = "ExportUnwritable"
    """The object may not be written by who made the export, or is there already, or its bucket is full."""
    EXPORT_FAILED = "ExportFailed"
    """An export failed before, and stays so."""


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


def attachments_of(held: Iterable[tuple[str, str]]) -> dict[str, bool]:
    """Return the disks among the reservations that an instance holds; True where it only reads one."""
    start = f"{attachment_namespace(DISK_ID_PREFIX)}-"
    return {
        namespace.removeprefix(attachment_namespace("")): value != READ_WRITE
        for namespace, value in sorted(held)
        if namespace.startswith(start)
    }


def writer(reservations: Mapping[str, str]) -> str:
    """Return the instance that attaches a disk with these reservations for writing; "" for none."""
    return reservations.get(READ_WRITE, "")


def readers(reservations: Mapping[str, str]) -> list[str]:
    return sorted(holder for value, holder in reservations.items() if value != READ_WRITE)


def is_public_image(image_id: str) -> bool:
    return image_id.startswith(PUBLIC_IMAGE_ID_START)


INSTANCE = "nebius.compute.v1.Instance"
INSTANCE_ID_PREFIX = "computeinstance"
InstanceStateEnum = InstanceStatus.InstanceState
AttachMode = AttachedDiskSpec.AttachMode

GPU_CLUSTER = "nebius.compute.v1.GpuCluster"
GPU_CLUSTER_ID_PREFIX = "computegpucluster"

MAINTENANCE_EVENT = "nebius.compute.v1.MaintenanceEvent"
MAINTENANCE_EVENT_ID_PREFIX = "computemaintenance"

GRACE_SECONDS = 60
"""The time for a guest to shut down before it is powered off."""
POD_GRACE_SECONDS = GRACE_SECONDS + 10
"""The same for its pod, whose launcher powers the guest off and then ends."""
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
    GPU_NOT_PASSABLE = "GpuNotPassable"
    """A GPU is there, and this host cannot pass it to a virtual machine."""
    GPU_LOST = "GpuLost"
    """A GPU of the machine, which was started, does not answer any more."""
    DISK_NOT_RELEASED = "DiskNotReleased"
    """The guest does not release a disk that is to be detached. The machine keeps running as before."""
    GPU_NOT_PASSED = "GpuNotPassed"
    """The machine runs and was started without its GPUs."""


class StopReason(StrEnum):
    """Why an instance that should run does not, until somebody starts it."""

    NONE = ""
    GUEST = "guest powered itself off"
    FAILED = "machine failed and its recovery policy says FAIL"
    PREEMPTED = "preempted"
    MAINTENANCE = "stopped for maintenance"


def attached_disks(spec: InstanceSpec) -> Iterable[tuple[str, AttachedDiskSpec]]:
    """Yield all disks of an instance's spec with their device names, the boot disk first."""
    yield BOOT_DEVICE, spec.boot_disk
    for index, disk in enumerate(spec.secondary_disks):
        yield disk.device_id or f"disk-{index + 1}", disk


def existing_disks(spec: InstanceSpec) -> dict[str, bool]:
    """Return the ids of the disks that are attached but not managed; True where read-only."""
    return {
        disk.existing_disk.id: is_read_only(disk)
        for _, disk in attached_disks(spec)
        if disk.WhichOneof("type") == "existing_disk"
    }


def is_read_only(attached: AttachedDiskSpec | AttachedFilesystemSpec) -> bool:
    """Return whether a disk or filesystem is attached read-only; both enums have the same numbers."""
    return attached.attach_mode == AttachMode.Value("READ_ONLY")


def policy_namespace(policy_id: str) -> str:
    """Return the namespace in which each instance that names a pricing policy reserves its own id."""
    return f"{policy_id}/instances"


def hostname(instance_id: str, spec: InstanceSpec) -> str:
    """Return the guest's name in its network: by default the id, so that no two are the same."""
    return spec.hostname or instance_id


def namespace(instance_id: str) -> str:
    return instance_id


def pod_name(instance_id: str) -> str:
    return instance_id


_SECRET_NAME = "machine"
_STOP_REASON, _POD_SPEC, _DISK_LIMITS, _DETACHING = "halt", "pod_spec", "disk_limits", "detaching"
_ENDED = "ended"


OVERDUE = "overdue"


@dataclass(frozen=True)
class RuntimeState:
    stop_reason: StopReason = StopReason.NONE
    pod_spec: KubernetesObject = field(default_factory=KubernetesObject)
    disk_limits: Mapping[str, DiskLimits] = field(default_factory=dict[str, DiskLimits])
    detaching: Mapping[str, str] = field(default_factory=dict[str, str])
    """The time since when the guest keeps a disk that it is to release, or OVERDUE, by disk id."""
    ended: str = ""
    """How the machine ended when that was why it stopped: `ending`."""


def ending(code: int | None) -> str:
    """Return an exit code in words, "exit code 1" or "signal 9"; "" where it is not known."""
    if code is None:
        return ""
    return f"signal {code - 128}" if 128 < code < _FIRST_NO_SIGNAL else f"exit code {code}"


_FIRST_NO_SIGNAL = 128 + 65
"""Exit codes below are 128 and the number of a signal."""


def read_runtime_state(tx: Transaction, instance_id: str) -> RuntimeState:
    raw = tx.secret(instance_id, _SECRET_NAME)
    if raw is None:
        return RuntimeState()
    content = json.loads(raw)
    reported = {disk_id: parse_limits(held) for disk_id, held in content.get(_DISK_LIMITS, {}).items()}
    return RuntimeState(
        StopReason(content[_STOP_REASON]),
        content[_POD_SPEC],
        disk_limits={disk_id: limits for disk_id, limits in reported.items() if limits is not None},
        detaching=content.get(_DETACHING, {}),
        ended=content.get(_ENDED, ""),
    )


def write_runtime_state(tx: Transaction, instance_id: str, state: RuntimeState) -> None:
    limits = {disk_id: held.to_dict() for disk_id, held in state.disk_limits.items()}
    content = {
        _STOP_REASON: state.stop_reason,
        _POD_SPEC: state.pod_spec,
        _DISK_LIMITS: limits,
        _DETACHING: dict(state.detaching),
        _ENDED: state.ended,
    }
    tx.put_secret(instance_id, _SECRET_NAME, json.dumps(content).encode())
