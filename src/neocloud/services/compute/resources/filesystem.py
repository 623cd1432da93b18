"""The Filesystem noun: names other parts may rely on, and its size in bytes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from neocloud.core import contract

FILESYSTEM = "nebius.compute.v1.Filesystem"
FILESYSTEM_ID_PREFIX = "computefilesystem"
Filesystem = contract.message(FILESYSTEM)
FilesystemSpec = contract.message("nebius.compute.v1.FilesystemSpec")
FilesystemStatus = contract.message("nebius.compute.v1.FilesystemStatus")
FilesystemType = contract.enum("nebius.compute.v1.FilesystemSpec.FilesystemType")

RESERVED_LABEL_PREFIX = "neocloud.dev/"
NAMESPACE_LABEL = "neocloud.dev/namespace"
"""On an owned filesystem: the engine namespace its volume lies in, which its owner keeps."""
ROOT_FILESYSTEM_LABEL = "neocloud.dev/root-filesystem"
"""On an owned filesystem: the root file system image that the volume starts as a copy of."""

BLOCK_SIZE_BYTES = 4096
KIB, MIB, GIB = 1024, 1024**2, 1024**3
_UNITS = {"size_bytes": 1, "size_kibibytes": KIB, "size_mebibytes": MIB, "size_gibibytes": GIB}


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


def filesystem_spec(size_gibibytes: int) -> Any:
    """The usual filesystem, for bricks that make one as a child."""
    return FilesystemSpec(size_gibibytes=size_gibibytes, type=FilesystemType.Value("NETWORK_SSD"))


def size_bytes(spec: Any) -> int:
    """The size, whichever unit it was given in; 0 when none was."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * _UNITS[unit] if unit else 0


def claim_name(filesystem_id: str) -> str:
    """The PersistentVolumeClaim of a filesystem; its id is unique and a legal DNS label."""
    return filesystem_id


def claim_namespace(filesystem_id: str, labels: Mapping[str, str], owner_id: str) -> str:
    """Where the claim lies. Only an owned filesystem may lie elsewhere: owners are bricks, never users."""
    return labels.get(NAMESPACE_LABEL, filesystem_id) if owner_id else filesystem_id
