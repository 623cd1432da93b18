"""Lookups of the resources that a spec names. They must be in the same project and not deleted."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import AddressBlockState, NetworkSpec, PoolSpec, PoolStatus, SubnetSpec
from neocloud.services.vpc.types import NETWORK, POOL, SUBNET

_WORDS = {NETWORK: "network", SUBNET: "subnet", POOL: "pool"}


@dataclass(frozen=True)
class Source:
    """A range of a pool whose parts may be allocated."""

    pool_id: str
    cidr: IPv4Network
    max_mask_length: int


def find(reader: ResourceReader, kind: str, resource_id: str, project_id: str) -> Resource | None:
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == project_id
    return row if is_there and row is not None and row.deleted_at is None else None


def missing(field: str, kind: str, resource_id: str) -> Violation:
    word = _WORDS.get(kind) or kind.rpartition(".")[2]
    return Violation(field, f"there is no {word} {resource_id!r} in this project")


def sources_of(reader: ResourceReader, pool_id: str) -> Iterator[Source]:
    """The ranges of a pool that are not disabled."""
    row = reader.get(pool_id)
    if row is None or row.kind != POOL:
        return
    spec, status = PoolSpec.FromString(row.spec), PoolStatus.FromString(row.status)
    for desired, cidr in zip(spec.cidrs, status.cidrs, strict=False):
        if desired.state != AddressBlockState.Value("DISABLED"):
            yield Source(row.id, IPv4Network(cidr), desired.max_mask_length or 32)


def private_sources(reader: ResourceReader, network: Resource) -> list[Source]:
    pools = NetworkSpec.FromString(network.spec).ipv4_private_pools.pools
    return [source for pool in pools for source in sources_of(reader, pool.id)]


def public_sources(reader: ResourceReader, network: Resource) -> list[Source]:
    pools = NetworkSpec.FromString(network.spec).ipv4_public_pools.pools
    return [source for pool in pools for source in sources_of(reader, pool.id)]


def subnets_of(reader: ResourceReader, network: Resource) -> list[Resource]:
    rows = reader.list(SUBNET, network.parent_id)
    return [row for row in rows if SubnetSpec.FromString(row.spec).network_id == network.id]


def network_of(reader: ResourceReader, subnet: Resource) -> Resource | None:
    return reader.get(SubnetSpec.FromString(subnet.spec).network_id)


def network_violations(new: Any, old: Any | None, reader: ResourceReader) -> Iterator[Violation]:
    """Return what is wrong with `spec.network_id`, which every resource in a network has."""
    if old is not None and new.spec.network_id != old.spec.network_id:
        yield Violation("spec.network_id", f"cannot be changed; it is {old.spec.network_id}")
    elif old is None and find(reader, NETWORK, new.spec.network_id, new.metadata.parent_id) is None:
        yield missing("spec.network_id", NETWORK, new.spec.network_id)
