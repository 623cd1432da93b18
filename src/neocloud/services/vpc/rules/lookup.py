"""Lookups of the resources that a spec names, and the reservations of ranges and addresses.

A reservation has one holder in its namespace, so no range or address is allocated twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Protocol

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    NetworkSpec,
    PoolSpec,
    PoolStatus,
    RouteTableSpec,
    SecurityGroupSpec,
    SubnetSpec,
)
from neocloud.services.vpc.types import NETWORK, POOL, SUBNET

SUBNET_BLOCKS = "vpc/subnet-blocks"
"""Namespace of the ranges of all subnets: a machine has one routing table, so no two may overlap."""
FIRST_POOL_BLOCKS = "vpc/first-pool-blocks"
"""Namespace of the ranges of pools that networks get when they name none. The pool holds its range, and other
pools' subnets keep clear of it."""
OWN_RANGE = "vpc/own-range"
"""Namespace of the range from which this cloud takes first pools before it tries the ranges that other clouds
on the host prefer. No resource holds it, so it stays reserved."""
PUBLIC_ADDRESSES = "vpc/public-addresses"
"""Namespace of the public addresses of all projects, whose public pools cover one range."""
_LABELS = {NETWORK: "network", SUBNET: "subnet", POOL: "pool"}


class InNetwork(Protocol):
    """A resource whose spec has a `network_id`."""

    @property
    def metadata(self) -> ResourceMetadata: ...

    @property
    def spec(self) -> RouteTableSpec | SecurityGroupSpec | SubnetSpec: ...


@dataclass(frozen=True)
class Source:
    """A range of a pool whose parts may be allocated."""

    pool_id: str
    cidr: IPv4Network
    max_mask_length: int


def find(reader: ResourceReader, kind: str, resource_id: str, project_id: str) -> Resource | None:
    """Return the resource if it is of this kind and project and is not being deleted."""
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == project_id
    return row if is_there and row is not None and row.deleted_at is None else None


def missing(field: str, kind: str, resource_id: str) -> Violation:
    label = _LABELS.get(kind) or kind.rpartition(".")[2]
    return Violation(field, f"there is no {label} {resource_id!r} in this project")


def sources_of(reader: ResourceReader, pool_id: str) -> Iterator[Source]:
    """Return the ranges of a pool that are not disabled."""
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


def network_of(reader: ResourceReader, subnet: Resource) -> Resource | None:
    return reader.get(SubnetSpec.FromString(subnet.spec).network_id)


def network_violations(new: InNetwork, old: InNetwork | None, reader: ResourceReader) -> Iterator[Violation]:
    """Return what is wrong with `spec.network_id`, which every resource in a network has."""
    if old is not None and new.spec.network_id != old.spec.network_id:
        yield Violation("spec.network_id", f"cannot be changed; it is {old.spec.network_id}")
    elif old is None and find(reader, NETWORK, new.spec.network_id, new.metadata.parent_id) is None:
        yield missing("spec.network_id", NETWORK, new.spec.network_id)


def pool_blocks(pool_id: str) -> str:
    """Return the namespace of the ranges that pools and subnets have of a pool."""
    return f"{pool_id}/blocks"


def subnet_addresses(subnet_id: str) -> str:
    return f"{subnet_id}/addresses"


def taken_for_subnets(reader: ResourceReader, pool_id: str) -> Mapping[str, str]:
    """Return the ranges that a new subnet of this pool must not overlap, each with its holder."""
    root = root_of(reader, pool_id)
    first = reader.reservations(FIRST_POOL_BLOCKS).items()
    return {
        **reader.reservations(pool_blocks(pool_id)),
        **reader.reservations(SUBNET_BLOCKS),
        **{cidr: holder for cidr, holder in first if holder != root},
    }


def root_of(reader: ResourceReader, pool_id: str) -> str:
    """Return the pool at the start of the chain of source pools."""
    row = reader.get(pool_id)
    while row is not None and row.kind == POOL:
        pool_id = row.id
        source_id = PoolSpec.FromString(row.spec).source_pool_id
        row = reader.get(source_id) if source_id else None
    return pool_id
