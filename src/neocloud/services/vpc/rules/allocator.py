"""Allocate addresses from the ranges of subnets and pools: a chosen block, or any free one."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.vpc.v1 import SubnetSpec, SubnetStatus
from neocloud.services.vpc.rules.cidr import shuffled
from neocloud.services.vpc.rules.lookup import Source, network_of, public_sources, sources_of
from neocloud.services.vpc.rules.reservations import PUBLIC_ADDRESSES, pool_blocks, subnet_addresses
from neocloud.services.vpc.rules.subnets import subnet_ranges
from neocloud.services.vpc.types import SUBNET, SubnetBlock

_BLIND_TRIES = 32
"""How many addresses to try before the reservations are read. Where a tenth is free, one of them nearly
always succeeds without that read."""


@dataclass(frozen=True)
class Range:
    """A range whose addresses may be allocated, and the namespace of their reservations."""

    namespace: str
    cidr: IPv4Network
    max_mask_length: int
    reserved: frozenset[IPv4Address]
    pool_id: str
    subnet_id: str = ""
    without: tuple[IPv4Network, ...] = ()

    def may_allocate(self, block: IPv4Network) -> bool:
        if block.prefixlen > self.max_mask_length or not block.subnet_of(self.cidr):
            return False
        is_reserved = any(address in block for address in self.reserved)
        return not is_reserved and not any(block.overlaps(part) for part in self.without)


Allocated = tuple[Range, IPv4Network]


def acquire(
    block: IPv4Network, ranges: Iterable[Range], holder: str, reader: ResourceReader
) -> Allocated | None:
    """Reserve exactly this block. Return None when any address of it is taken."""
    within = next((each for each in ranges if each.may_allocate(block)), None)
    return (within, block) if within is not None and _reserve(within, block, holder, reader) else None


def acquire_free(
    prefix_length: int, ranges: Iterable[Range], holder: str, reader: ResourceReader
) -> Allocated | None:
    """Reserve any block of this length. Single addresses come from all over the range, as the holder's id
    decides."""
    for within in ranges:
        block = (
            _free_address(within, holder, reader)
            if prefix_length == 32
            else _first_free(within, prefix_length, holder, reader)
        )
        if block is not None:
            return within, block
    return None


def _free_address(within: Range, holder: str, reader: ResourceReader) -> IPv4Network | None:
    if within.max_mask_length < 32:
        return None
    taken: Iterable[str] | None = None
    for number, address in enumerate(shuffled(within.cidr, holder)):
        if number == _BLIND_TRIES:
            taken = frozenset(reader.reservations(within.namespace))
        block = IPv4Network(address)
        if str(address) in (taken or ()) or not within.may_allocate(block):
            continue
        if reader.reserve(within.namespace, str(address), holder):
            return block
    return None


def _first_free(within: Range, prefix_length: int, holder: str, reader: ResourceReader) -> IPv4Network | None:
    if prefix_length < within.cidr.prefixlen:
        return None
    taken = frozenset(reader.reservations(within.namespace))
    for block in within.cidr.subnets(new_prefix=prefix_length):
        is_free = within.may_allocate(block) and not any(str(address) in taken for address in block)
        if is_free and _reserve(within, block, holder, reader):
            return block
    return None


def _reserve(within: Range, block: IPv4Network, holder: str, reader: ResourceReader) -> bool:
    """Reserve all addresses of the block. A refusal rolls back the transaction."""
    return all(reader.reserve(within.namespace, str(address), holder) for address in block)


def ranges_of_subnet(reader: ResourceReader, subnet_id: str, is_public: bool) -> list[Range]:
    row = reader.get(subnet_id)
    if row is None or row.kind != SUBNET:
        return []
    if is_public:
        network = network_of(reader, row)
        sources = public_sources(reader, network) if network is not None else []
        return [_public_range(reader, source) for source in sources]
    spec, status = SubnetSpec.FromString(row.spec), SubnetStatus.FromString(row.status)
    return [
        Range(
            namespace=subnet_addresses(row.id),
            cidr=cidr,
            max_mask_length=max_mask_length,
            reserved=SubnetBlock(cidr).reserved,
            pool_id=pool_id,
            subnet_id=row.id,
        )
        for pool_id, cidr, max_mask_length in subnet_ranges(spec, status)
    ]


def ranges_of_pool(reader: ResourceReader, pool_id: str, is_public: bool) -> list[Range]:
    """Return a pool's ranges; of a private pool only those that subnets have."""
    if is_public:
        return [_public_range(reader, source) for source in sources_of(reader, pool_id)]
    holders = sorted(set(reader.reservations(pool_blocks(pool_id)).values()))
    found = [each for holder in holders for each in ranges_of_subnet(reader, holder, False)]
    return [each for each in found if each.pool_id == pool_id]


def _public_range(reader: ResourceReader, source: Source) -> Range:
    """Return the public range without the parts that are pools of their own."""
    parts = tuple(IPv4Network(cidr) for cidr in reader.reservations(pool_blocks(source.pool_id)))
    return Range(
        namespace=PUBLIC_ADDRESSES,
        cidr=source.cidr,
        max_mask_length=source.max_mask_length,
        reserved=frozenset(),
        pool_id=source.pool_id,
        without=parts,
    )
