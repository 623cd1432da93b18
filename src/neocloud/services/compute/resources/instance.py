"""The Instance noun and what comes with it: names that other parts may rely on, states, attachments."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from neocloud.messages.nebius.compute.v1 import AttachedDiskSpec, AttachedFilesystemSpec, InstanceStatus

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
