"""Nouns of compute and pure lookups for other bricks: platforms, presets, capacity, storage, machines."""

from neocloud.services.compute.resources.capacity import Demand, check_fits, shortages
from neocloud.services.compute.resources.catalogue import (
    Platform,
    Preset,
    platforms,
    preset,
    preset_violations,
)
from neocloud.services.compute.resources.disk import attachment_namespace
from neocloud.services.compute.resources.filesystem import (
    FILESYSTEM,
    FILESYSTEM_ID_PREFIX,
    NAMESPACE_LABEL,
    RESERVED_LABEL_PREFIX,
    ROOT_FILESYSTEM_LABEL,
    FilesystemReason,
    FilesystemState,
    FilesystemType,
    claim_name,
    claim_namespace,
    claim_reference,
    filesystem_spec,
    find_filesystem,
    may_attach,
)
from neocloud.services.compute.resources.filesystem import attachment_value as filesystem_attachment
from neocloud.services.compute.resources.instance import INSTANCE, InstanceState
from neocloud.services.compute.resources.room import (
    check_capacity,
    held_by_others,
    instance_demands,
    needs_capacity_check,
)
from neocloud.services.compute.resources.sizes import BLOCK_SIZE_BYTES, GIB, gib, size_bytes

__all__ = [
    "BLOCK_SIZE_BYTES",
    "FILESYSTEM",
    "FILESYSTEM_ID_PREFIX",
    "GIB",
    "INSTANCE",
    "NAMESPACE_LABEL",
    "RESERVED_LABEL_PREFIX",
    "ROOT_FILESYSTEM_LABEL",
    "Demand",
    "FilesystemReason",
    "FilesystemState",
    "FilesystemType",
    "InstanceState",
    "Platform",
    "Preset",
    "attachment_namespace",
    "check_fits",
    "check_capacity",
    "claim_name",
    "claim_namespace",
    "claim_reference",
    "filesystem_attachment",
    "filesystem_spec",
    "find_filesystem",
    "gib",
    "held_by_others",
    "may_attach",
    "instance_demands",
    "needs_capacity_check",
    "platforms",
    "preset",
    "preset_violations",
    "shortages",
    "size_bytes",
]
