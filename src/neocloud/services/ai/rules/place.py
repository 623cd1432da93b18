"""Where the workload is to be: its subnet and its filesystems, all of the same project. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import SubnetSpec
from neocloud.services.ai.resources import ReadWrite
from neocloud.services.compute.public import filesystem_attachment, find_filesystem
from neocloud.services.compute.types import attachment_namespace
from neocloud.services.vpc.types import NETWORK, SUBNET

DEFAULT_NETWORK = "default-network"


def place_violations(new: Any, reader: ResourceReader) -> Iterable[Violation]:
    parent_id, spec = new.metadata.parent_id, new.spec
    if spec.subnet_id and _find(reader, SUBNET, spec.subnet_id, parent_id) is None:
        yield _missing("spec.subnet_id", "subnet", spec.subnet_id)
    elif not spec.subnet_id and default_subnet(reader, parent_id) is None:
        yield Violation("spec.subnet_id", "is required: the project has no default network; name a subnet")
    for index, volume in enumerate(spec.volumes):
        if find_filesystem(reader, volume.source, parent_id) is None:
            yield _missing(f"spec.volumes[{index}].source", "filesystem", volume.source)


def default_subnet(reader: ResourceReader, parent_id: str) -> Resource | None:
    """The first of the project's default network."""
    network = reader.find(NETWORK, parent_id, DEFAULT_NETWORK)
    if network is None:
        return None
    rows = sorted(reader.list(SUBNET, parent_id), key=lambda row: (row.created_at, row.id))
    return next((row for row in rows if _is_in(row, network.id)), None)


def hold_filesystems(new: Any, reader: ResourceReader) -> None:
    """They are not deleted from under a workload."""
    for volume in new.spec.volumes:
        value = filesystem_attachment(new.metadata.id, is_read_only=is_read_only(volume))
        reader.reserve(attachment_namespace(volume.source), value, new.metadata.id)


def is_read_only(volume: Any) -> bool:
    """The two nouns number their modes differently, so the name decides."""
    return volume.Mode.Name(volume.mode) == ReadWrite.Name(ReadWrite.Value("READ_ONLY"))


def _is_in(subnet: Resource, network_id: str) -> bool:
    return not subnet.deleted_at and SubnetSpec.FromString(subnet.spec).network_id == network_id


def _find(reader: ResourceReader, kind: str, resource_id: str, parent_id: str) -> Resource | None:
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == parent_id and not row.deleted_at
    return row if is_there else None


def _missing(field: str, word: str, resource_id: str) -> Violation:
    return Violation(field, f'there is no {word} "{resource_id}" in this project; check the id')
