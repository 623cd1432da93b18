"""The Filesystem noun: names other parts may rely on."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Reference
from neocloud.messages.nebius.compute.v1 import FilesystemSpec

FILESYSTEM = "nebius.compute.v1.Filesystem"
FILESYSTEM_ID_PREFIX = "computefilesystem"
FilesystemType = FilesystemSpec.FilesystemType

_READERS, _WRITERS = "read-only/", "read-write/"

RESERVED_LABEL_PREFIX = "neocloud.dev/"
NAMESPACE_LABEL = "neocloud.dev/namespace"
"""On an owned filesystem: the engine namespace its volume lies in, which its owner keeps."""
ROOT_FILESYSTEM_LABEL = "neocloud.dev/root-filesystem"
"""On an owned filesystem: the root file system image that the volume starts as a copy of."""


def attachment_value(instance_id: str, *, is_read_only: bool) -> str:
    """Many may attach a filesystem: each has a reservation of its own in the filesystem's namespace."""
    return f"{_READERS if is_read_only else _WRITERS}{instance_id}"


def attached(claims: Mapping[str, str], *, is_read_only: bool) -> list[str]:
    """Who has attached the filesystem with these claims in this mode."""
    start = _READERS if is_read_only else _WRITERS
    return sorted(holder for value, holder in claims.items() if value.startswith(start))


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


def find_filesystem(world: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
    """The live filesystem that a resource of this project may attach; None for all others.

    One that another resource owns is its owner's alone, such as the shared root of a Slurm cluster, which
    holds the files and keys of everybody there. The only way in which rules may look a filesystem up.
    """
    row = world.get(filesystem_id)
    return row if row is not None and row.kind == FILESYSTEM and may_attach(row, parent_id) else None


def may_attach(row: Resource, parent_id: str) -> bool:
    """Whether a resource of this project may attach the filesystem; asked again when it is mounted."""
    return row.parent_id == parent_id and not row.owner_id and not row.deleted_at


def claim_name(filesystem_id: str) -> str:
    """The PersistentVolumeClaim of a filesystem; its id is unique and a legal DNS label."""
    return filesystem_id


def claim_namespace(filesystem_id: str, labels: Mapping[str, str], owner_id: str) -> str:
    """Where the claim lies. Only an owned filesystem may lie elsewhere: owners are bricks, never users."""
    return labels.get(NAMESPACE_LABEL, filesystem_id) if owner_id else filesystem_id


def claim_reference(row: Resource) -> Reference:
    """Where the volume of a filesystem is, for whoever mounts it."""
    namespace = claim_namespace(row.id, row.labels, row.owner_id)
    return Reference("PersistentVolumeClaim", namespace, claim_name(row.id))
