"""Lookups of the resources that a spec names, and the reservations of ranges and addresses.

A reservation has one holder in its namespace, so no range or address is allocated twice.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
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

_SMALLEST_ALLOCATION_PREFIX = 24
"""A block is reserved address by address, so it has 256 addresses at most."""


@dataclass(frozen=True)
class CidrRequest:
    """The request in the `cidr` of a spec: a length, and the range where one was chosen."""

    prefix_length: int
    network: IPv4Network | None = None


def parse_request(text: str, default_prefix_length: int = 32) -> CidrRequest:
    """Parse "10.1.2.3", "10.1.2.0/24", "/24" or "". Raises ValueError with a message for the client."""
    if not text:
        return CidrRequest(default_prefix_length)
    if text.startswith("/"):
        length = int(text[1:])
        if length > 32:
            raise ValueError("must be at most /32: only IPv4 is served here")
        return CidrRequest(length)
    try:
        network = IPv4Network(text)
    except ValueError:
        raise ValueError(
            "must be an IPv4 address, an IPv4 range such as 10.1.2.0/24 with nothing set after its prefix,"
            " or a length such as /24"
        ) from None
    return CidrRequest(network.prefixlen, network)


def overlapping(block: IPv4Network, others: Iterable[str]) -> str | None:
    """Return the first of the others that shares an address with the block."""
    return next((other for other in others if block.overlaps(IPv4Network(other))), None)


def first_free_block(
    ranges: Iterable[IPv4Network], prefix_length: int, taken: Iterable[str]
) -> IPv4Network | None:
    """Return the lowest block of this length in the ranges that overlaps nothing taken."""
    occupied = sorted({IPv4Network(each) for each in taken})
    for within in ranges:
        if prefix_length < within.prefixlen:
            continue
        found = _free_in(within, prefix_length, [each for each in occupied if each.overlaps(within)])
        if found is not None:
            return found
    return None


def _free_in(within: IPv4Network, prefix_length: int, occupied: Sequence[IPv4Network]) -> IPv4Network | None:
    size = 1 << (32 - prefix_length)
    at = int(within[0])
    for other in occupied:
        if at + size <= int(other[0]):
            break
        if int(other[-1]) >= at:
            at = -(-(int(other[-1]) + 1) // size) * size
    return IPv4Network((at, prefix_length)) if at + size - 1 <= int(within[-1]) else None


def largest_free_prefix(ranges: Iterable[IPv4Network], taken: Collection[str]) -> int | None:
    """Return the shortest prefix length of which a block is free in any of the ranges."""
    found = list(ranges)
    shortest = min((each.prefixlen for each in found), default=33)
    lengths = range(shortest, 33)
    return next((length for length in lengths if first_free_block(found, length, taken) is not None), None)


def is_too_many(prefix_length: int) -> bool:
    """Return whether the size is beyond the limit of one Allocation."""
    return prefix_length < _SMALLEST_ALLOCATION_PREFIX


def shuffled(within: IPv4Network, seed: str) -> Iterator[IPv4Address]:
    """Yield all addresses of a range in a pseudo-random order, the same for the same seed.

    The stride is odd and the size a power of two, so each address comes once. With a stride of one, searches
    would run through the same sequences of taken addresses.
    """
    size = within.num_addresses
    digest = hashlib.sha256(seed.encode()).digest()
    start, stride = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big") | 1
    return (within[(start + number * stride) % size] for number in range(size))


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
