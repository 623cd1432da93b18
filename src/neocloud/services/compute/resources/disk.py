"""Disk, DiskSnapshot and Image: names that other parts may rely on, and who holds a disk.

An attachment is a reservation in the namespace of the disk: the value "read-write" belongs to one instance, a
read-only attachment is a value of its own. So two instances never write one disk, whatever races.
"""

from collections.abc import Mapping
from enum import StrEnum

from neocloud.messages.nebius.compute.v1 import DiskSpec
from neocloud.services.iam.resources import CLOUDS_PROJECT_ID

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


def attachment_namespace(disk_id: str) -> str:
    return f"attachments/{disk_id}"


def attachment_value(instance_id: str, *, is_read_only: bool) -> str:
    return instance_id if is_read_only else READ_WRITE


def writer(claims: Mapping[str, str]) -> str:
    """The instance that a disk with these claims is attached to for writing; "" for none."""
    return claims.get(READ_WRITE, "")


def readers(claims: Mapping[str, str]) -> list[str]:
    return sorted(holder for value, holder in claims.items() if value != READ_WRITE)


def is_public_image(image_id: str) -> bool:
    return image_id.startswith(PUBLIC_IMAGE_ID_START)
