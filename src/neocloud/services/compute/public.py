"""What other services call: filesystems, presets, and the check that a node fits. Pure."""

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
    holder_name,
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
    "holder_name",
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
    """Return the reservation of an attachment; a filesystem's namespace holds one for each resource."""
    return f"{_READERS if is_read_only else _WRITERS}{instance_id}"


def filesystem_holders(reservations: Mapping[str, str], *, is_read_only: bool) -> list[str]:
    """Return the ids of the resources that attach the filesystem in this mode, from its reservations."""
    start = _READERS if is_read_only else _WRITERS
    return sorted(holder for value, holder in reservations.items() if value.startswith(start))


def filesystem_spec(size_gibibytes: int) -> FilesystemSpec:
    """Return the spec of a default filesystem, for services that create one as a child."""
    return FilesystemSpec(size_gibibytes=size_gibibytes, type=FilesystemType.Value("NETWORK_SSD"))


def find_filesystem(reader: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
    """Return the filesystem if a resource of this project may attach it, else None.

    Only the owner may use an owned filesystem, such as the shared root of a Slurm cluster, which holds the
    files and keys of all its users. Rules look up filesystems only with this function.
    """
    row = reader.get(filesystem_id)
    return row if row is not None and row.kind == FILESYSTEM and may_attach(row, parent_id) else None


def may_attach(row: Resource, parent_id: str) -> bool:
    """Whether a resource of this project may attach the filesystem; checked again when it is mounted."""
    return row.parent_id == parent_id and not row.owner_id and not row.deleted_at


def claim_name(filesystem_id: str) -> str:
    """Return the name of a filesystem's claim: its id, which is unique and a legal DNS label."""
    return filesystem_id


def claim_namespace(filesystem_id: str, labels: Mapping[str, str], owner_id: str) -> str:
    """Return the namespace of the claim: its own, or for owned filesystems the one that its owner chose."""
    return labels.get(NAMESPACE_LABEL, filesystem_id) if owner_id else filesystem_id


def claim_reference(row: Resource) -> Reference:
    """Return the claim of a filesystem, for pods that mount it."""
    namespace = claim_namespace(row.id, row.labels, row.owner_id)
    return Reference("PersistentVolumeClaim", namespace, claim_name(row.id))
