"""Rules of filesystems: size, type, labels, and when one may be deleted. Pure."""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import Filesystem, FilesystemSpec
from neocloud.services.compute.rules.disk import attached_to
from neocloud.services.compute.types import (
    BLOCK_SIZE_BYTES,
    GIB,
    RESERVED_LABEL_PREFIX,
    FilesystemType,
    attachment_namespace,
    size_bytes,
)

MAX_SIZE_BYTES = 1024 * 1024 * GIB
SERVED_TYPES = ("NETWORK_SSD",)


class FilesystemRules(Rules[Filesystem]):
    def quota_demand(self, resource: Filesystem) -> Mapping[str, int]:
        kind = FilesystemType.Name(resource.spec.type).lower().replace("_", "-")
        return {"compute.filesystem.count": 1, f"compute.filesystem.size.{kind}": size_bytes(resource.spec)}

    def violations(
        self, new: Filesystem, old: Filesystem | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        yield from _size_violations(new.spec, old.spec if old else None)
        yield from _label_violations(new.metadata.labels, old.metadata.labels if old else {})
        if FilesystemType.Name(new.spec.type) not in SERVED_TYPES:
            yield Violation("spec.type", f"is not offered here; choose from: {', '.join(SERVED_TYPES)}")
        if new.spec.block_size_bytes not in (0, BLOCK_SIZE_BYTES):
            yield Violation("spec.block_size_bytes", f"must be {BLOCK_SIZE_BYTES}, or left out")

    def check_delete(self, resource: Filesystem, reader: ResourceReader) -> None:
        holders = sorted(set(reader.reservations(attachment_namespace(resource.metadata.id)).values()))
        if holders:
            raise contract.bad_state(
                resource.metadata.id,
                f'Filesystem "{resource.metadata.name}" is attached to '
                f"{attached_to(reader, holders, '--filesystems')}",
            )
        if resource.spec.forbid_deletion:
            raise contract.bad_state(
                resource.metadata.id,
                f'Filesystem "{resource.metadata.name}" is protected against deletion. '
                "Set spec.forbid_deletion to false first.",
            )


def _size_violations(new: FilesystemSpec, old: FilesystemSpec | None) -> Iterable[Violation]:
    size, unit = size_bytes(new), new.WhichOneof("size") or "size_gibibytes"
    if not 0 < size <= MAX_SIZE_BYTES:
        yield Violation(f"spec.{unit}", f"must be more than 0 and at most {MAX_SIZE_BYTES // GIB} GiB")
    elif old is not None and size < size_bytes(old):
        yield Violation(f"spec.{unit}", f"a filesystem cannot shrink; it has {size_bytes(old) / GIB:g} GiB")


def _label_violations(new: Mapping[str, str], old: Mapping[str, str]) -> Iterable[Violation]:
    """Labels with our prefix decide the namespace of a volume; only services set them, on what they own."""
    for key in {*new, *old}:
        if key.startswith(RESERVED_LABEL_PREFIX) and new.get(key) != old.get(key):
            yield Violation(
                f'metadata.labels["{key}"]', f"{RESERVED_LABEL_PREFIX} labels are set by the cloud"
            )
