"""What other services use of compute: filesystems, presets, and the check that a node fits. Pure."""

from collections.abc import Mapping

from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Reference
from neocloud.messages.nebius.compute.v1 import FilesystemSpec
from neocloud.services.compute.capacity_check import (
    Demand,
    check_capacity,
    check_fits,
    held_by_others,
    instance_demands,
    needs_capacity_check,
    shortages,
)
from neocloud.services.compute.catalogue import Platform, Preset, platforms, preset, preset_violations
from neocloud.services.compute.types import FILESYSTEM, NAMESPACE_LABEL, FilesystemType

__all__ = [
    "Demand",
    "Platform",
    "Preset",
    "check_capacity",
    "check_fits",
    "claim_name",
    "claim_namespace",
    "claim_reference",
    "filesystem_attachment",
    "filesystem_holders",
    "filesystem_spec",
    "find_filesystem",
    "held_by_others",
    "instance_demands",
    "may_attach",
    "needs_capacity_check",
    "platforms",
    "preset",
    "preset_violations",
    "shortages",
]

_READERS, _WRITERS = "read-only/", "read-write/"


def filesystem_attachment(instance_id: str, *, is_read_only: bool) -> str:
    """Many may attach a filesystem: each has a reservation of its own in the filesystem's namespace."""
    return f"{_READERS if is_read_only else _WRITERS}{instance_id}"


def filesystem_holders(reservations: Mapping[str, str], *, is_read_only: bool) -> list[str]:
    """Return the ids of those that attach the filesystem in this mode, given its reservations."""
    start = _READERS if is_read_only else _WRITERS
    return sorted(holder for value, holder in reservations.items() if value.startswith(start))


def filesystem_spec(size_gibibytes: int) -> FilesystemSpec:
    """The usual filesystem, for services that create one as a child."""
    return FilesystemSpec(size_gibibytes=size_gibibytes, type=FilesystemType.Value("NETWORK_SSD"))


def find_filesystem(reader: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
    """The live filesystem that a resource of this project may attach; None for all others.

    One that another resource owns is its owner's alone, such as the shared root of a Slurm cluster, which
    holds the files and keys of everybody there. The only way in which rules may look a filesystem up.
    """
    row = reader.get(filesystem_id)
    return row if row is not None and row.kind == FILESYSTEM and may_attach(row, parent_id) else None


def may_attach(row: Resource, parent_id: str) -> bool:
    """Whether a resource of this project may attach the filesystem; checked again when it is mounted."""
    return row.parent_id == parent_id and not row.owner_id and not row.deleted_at


def claim_name(filesystem_id: str) -> str:
    """The PersistentVolumeClaim of a filesystem; its id is unique and a legal DNS label."""
    return filesystem_id


def claim_namespace(filesystem_id: str, labels: Mapping[str, str], owner_id: str) -> str:
    """Where the claim lies. Only an owned filesystem may lie elsewhere: owners are services, never users."""
    return labels.get(NAMESPACE_LABEL, filesystem_id) if owner_id else filesystem_id


def claim_reference(row: Resource) -> Reference:
    """Where the volume of a filesystem is, for whoever mounts it."""
    namespace = claim_namespace(row.id, row.labels, row.owner_id)
    return Reference("PersistentVolumeClaim", namespace, claim_name(row.id))
