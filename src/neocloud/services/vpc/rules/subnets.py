"""Subnets: the ranges that each has alone, chosen or taken from its network's pools."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    CreateSubnetRequest,
    IPv4PrivateSubnetPools,
    IPv4PublicSubnetPools,
    NetworkStatus,
    RouteTableSpec,
    Subnet,
    SubnetCidr,
    SubnetSpec,
    SubnetStatus,
    SubnetStatusPool,
    UpdateSubnetRequest,
)
from neocloud.services.vpc.rules.lookup import (
    SUBNET_BLOCKS,
    Source,
    find,
    first_free_block,
    largest_free_prefix,
    missing,
    network_violations,
    overlapping,
    parse_request,
    pool_blocks,
    private_sources,
    public_sources,
    subnet_addresses,
    taken_for_subnets,
)
from neocloud.services.vpc.rules.pools import default_block, mask_violations, too_many_blocks
from neocloud.services.vpc.types import NETWORK, ROUTE_TABLE, SMALLEST_SUBNET_PREFIX

SubnetPools = IPv4PrivateSubnetPools | IPv4PublicSubnetPools
_POOLS = "spec.ipv4_private_pools"
_SHARE_PREFIX = 20
"""The prefix length of the range that a subnet without a chosen one gets from a large pool."""
_FIRST_SHARE_PREFIX = 17
"""The first subnet of a network gets half of the pool, but no more than a range of this prefix length."""


class SubnetRules(Rules[Subnet]):
    def request_violations(self, request: CreateSubnetRequest | UpdateSubnetRequest) -> Iterable[Violation]:
        for field in ("ipv4_private_pools", "ipv4_public_pools"):
            count = sum(1 for _ in _blocks(getattr(request.spec, field)))
            yield from too_many_blocks(f"spec.{field}.pools", count)

    def defaults(self, resource: Subnet) -> None:
        for pools in (resource.spec.ipv4_private_pools, resource.spec.ipv4_public_pools):
            pools.use_network_pools = pools.use_network_pools or not pools.pools
            for _, block in _blocks(pools):
                default_block(block)

    def quota_demand(self, resource: Subnet) -> Mapping[str, int]:
        return {"vpc.subnet.count": 1}

    def violations(self, new: Subnet, old: Subnet | None, reader: ResourceReader) -> Iterable[Violation]:
        private, public = new.spec.ipv4_private_pools, new.spec.ipv4_public_pools
        yield from network_violations(new, old, reader)
        if public.pools:
            why = "must be empty: public addresses come from the network's pools (use_network_pools)"
            yield Violation("spec.ipv4_public_pools.pools", why)
        if private.pools and private.use_network_pools:
            yield Violation(f"{_POOLS}.use_network_pools", "must be false where pools are given")
        yield from _route_table_violations(new, reader)
        network = find(reader, NETWORK, new.spec.network_id, new.metadata.parent_id)
        if old is not None and _cidrs(private) != _cidrs(old.spec.ipv4_private_pools):
            yield Violation(_POOLS, "the ranges of a subnet cannot be changed; create another subnet")
        elif old is None and network is not None:
            yield from _block_violations(new, network, reader)

    def complete(self, new: Subnet, old: Subnet | None, reader: ResourceReader) -> None:
        network = reader.get(new.spec.network_id)
        if old is None and network is not None:
            new.status.state = SubnetStatus.State.Value("READY")
            blocks = list(_reserve_blocks(new, network, reader))
            new.status.ipv4_private_pools.extend(_pool_statuses(blocks))
            new.status.ipv4_private_cidrs.extend(str(block) for _, block in blocks)
        if network is not None:
            show_network_status(new, network, reader)

    def dependents(self, resource: Subnet) -> Iterable[str]:
        return (resource.spec.network_id,)

    def check_delete(self, resource: Subnet, reader: ResourceReader) -> None:
        subnet_id = resource.metadata.id
        users = sorted(set(reader.reservations(subnet_addresses(subnet_id)).values()))
        if users:
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            raise contract.bad_state(
                subnet_id,
                f"Subnet {subnet_id} is in use: {', '.join(users[:3])}{more} have addresses of it."
                " Delete those, or what they belong to, first.",
            )


def show_network_status(subnet: Subnet, network: Resource, reader: ResourceReader) -> None:
    """Set the parts of a subnet's status that follow from the current state of its network."""
    default_table = NetworkStatus.FromString(network.status).default_route_table_id
    subnet.status.route_table.id = subnet.spec.route_table_id or default_table
    subnet.status.route_table.default = subnet.status.route_table.id == default_table
    del subnet.status.ipv4_public_pools[:]
    ranges = [(source, source.cidr) for source in public_sources(reader, network)]
    subnet.status.ipv4_public_pools.extend(_pool_statuses(ranges))
    cidrs = [cidr for pool in subnet.status.ipv4_public_pools for cidr in pool.cidrs]
    subnet.status.ipv4_public_cidrs[:] = cidrs


def subnet_ranges(spec: SubnetSpec, status: SubnetStatus) -> Iterator[tuple[str, IPv4Network, int]]:
    """Yield the ranges of a subnet that are not disabled: pool, range, longest prefix of an allocation."""
    blocks = [block for _, block in _blocks(spec.ipv4_private_pools)]
    pool_of = {cidr: pool.pool_id for pool in status.ipv4_private_pools for cidr in pool.cidrs}
    for index, cidr in enumerate(status.ipv4_private_cidrs):
        block = blocks[index] if index < len(blocks) else None
        if block is None or block.state != AddressBlockState.Value("DISABLED"):
            longest = block.max_mask_length if block is not None else 32
            yield pool_of[cidr], IPv4Network(cidr), longest


def _blocks(pools: SubnetPools) -> Iterator[tuple[str, SubnetCidr]]:
    """Yield all ranges of a subnet's pools, each with its path."""
    for index, pool in enumerate(pools.pools):
        for number, block in enumerate(pool.cidrs):
            yield f"pools[{index}].cidrs[{number}]", block


def _cidrs(pools: SubnetPools) -> list[str]:
    return [block.cidr for _, block in _blocks(pools)]


def _route_table_violations(new: Subnet, reader: ResourceReader) -> Iterator[Violation]:
    table_id = new.spec.route_table_id
    row = find(reader, ROUTE_TABLE, table_id, new.metadata.parent_id) if table_id else None
    if table_id and row is None:
        yield missing("spec.route_table_id", ROUTE_TABLE, table_id)
    elif row is not None and RouteTableSpec.FromString(row.spec).network_id != new.spec.network_id:
        yield Violation("spec.route_table_id", f"{table_id} belongs to another network")


def _block_violations(new: Subnet, network: Resource, reader: ResourceReader) -> Iterator[Violation]:
    sources, chosen = private_sources(reader, network), list[str]()
    for path, block in _blocks(new.spec.ipv4_private_pools):
        field = f"{_POOLS}.{path}"
        try:
            requested = parse_request(block.cidr)
        except ValueError as error:
            yield Violation(f"{field}.cidr", str(error))
            continue
        yield from mask_violations(field, block, requested)
        if requested.prefix_length > SMALLEST_SUBNET_PREFIX:
            yield Violation(f"{field}.cidr", f"is too small; must be /{SMALLEST_SUBNET_PREFIX} or larger")
        elif requested.network is not None:
            why = _why_not(requested.network, sources, chosen, reader)
            if why:
                yield Violation(f"{field}.cidr", why)
            chosen.append(str(requested.network))


def _why_not(block: IPv4Network, sources: list[Source], chosen: list[str], reader: ResourceReader) -> str:
    source = _source_of(block, sources)
    if source is None:
        there = ", ".join(str(each.cidr) for each in sources)
        return f"must lie in a pool of the network: {there or 'it has none'}"
    if block.prefixlen > source.max_mask_length:
        return f"must be /{source.max_mask_length} or larger, as pool {source.pool_id} says"
    own = overlapping(block, [*chosen, *reader.reservations(pool_blocks(source.pool_id))])
    if own is not None:
        return f"overlaps {own}"
    if overlapping(block, taken_for_subnets(reader, source.pool_id)) is not None:
        return "overlaps a range that another network of this machine uses; choose another"
    return ""


def _source_of(block: IPv4Network, sources: Iterable[Source]) -> Source | None:
    return next((source for source in sources if block.subnet_of(source.cidr)), None)


def _reserve_blocks(
    subnet: Subnet, network: Resource, reader: ResourceReader
) -> Iterator[tuple[Source, IPv4Network]]:
    """Reserve the subnet's ranges and yield each with its source."""
    sources = private_sources(reader, network)
    texts = _cidrs(subnet.spec.ipv4_private_pools)
    for text in texts or [""]:
        requested = parse_request(text) if text else None
        if requested is not None and requested.network is not None:
            source, block = _source_of(requested.network, sources), requested.network
            assert source is not None, "The violations were checked before."
        else:
            source, block = _free_block(
                subnet, sources, requested.prefix_length if requested else None, reader
            )
        reader.reserve(pool_blocks(source.pool_id), str(block), subnet.metadata.id)
        reader.reserve(SUBNET_BLOCKS, str(block), subnet.metadata.id)
        yield source, block


def _free_block(
    subnet: Subnet, sources: list[Source], prefix_length: int | None, reader: ResourceReader
) -> tuple[Source, IPv4Network]:
    for source in sources:
        taken = taken_for_subnets(reader, source.pool_id)
        length = prefix_length or _share(source, list(taken))
        if length is None or length > min(source.max_mask_length, SMALLEST_SUBNET_PREFIX):
            continue
        found = first_free_block([source.cidr], length, taken)
        if found is not None:
            return source, found
    requested = f"/{prefix_length}" if prefix_length else f"/{SMALLEST_SUBNET_PREFIX}"
    raise contract.not_enough_resources(
        "vpc.subnet",
        requested,
        f"The pools of network {subnet.spec.network_id} have no free range of {requested} left."
        " Delete a subnet, or add a pool to the network.",
    )


def _share(source: Source, taken: list[str]) -> int | None:
    """Return the prefix length for a subnet that names no range and no length; None: the pool is full."""
    free = largest_free_prefix([source.cidr], taken)
    if free is None or free >= _SHARE_PREFIX:
        return free
    return max(free + 1, _FIRST_SHARE_PREFIX) if free == source.cidr.prefixlen else _SHARE_PREFIX


def _pool_statuses(ranges: Iterable[tuple[Source, IPv4Network]]) -> Iterable[SubnetStatusPool]:
    """Return the ranges as a status has them: grouped by pool."""
    found: dict[str, SubnetStatusPool] = {}
    for source, block in ranges:
        pool = found.setdefault(source.pool_id, SubnetStatusPool(pool_id=source.pool_id))
        pool.cidrs.append(str(block))
    return found.values()
