"""Subnets: the range that each has for itself, chosen or taken from its network's pools."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import AddressBlockState, NetworkStatus, RouteTableSpec, SubnetStatus
from neocloud.services.vpc.rules.cidr import first_free_block, largest_free_prefix, overlapping, wanted
from neocloud.services.vpc.rules.lookup import (
    Source,
    find,
    missing,
    network_violations,
    private_sources,
    public_sources,
)
from neocloud.services.vpc.rules.pools import default_block, mask_violations, too_many_blocks
from neocloud.services.vpc.rules.reservations import (
    SUBNET_BLOCKS,
    pool_blocks,
    subnet_addresses,
    taken_for_subnets,
)
from neocloud.services.vpc.types import NETWORK, ROUTE_TABLE, SMALLEST_SUBNET_PREFIX

_POOLS = "spec.ipv4_private_pools"
_SHARE_PREFIX = 20
"""The size of the range that a subnet without a chosen one gets from a large pool, so that others fit too."""
_FIRST_SHARE_PREFIX = 17
"""The first of a network gets more: half of the pool, but no more than this."""


class SubnetRules(Rules):
    def request_violations(self, request: Any) -> Iterable[Violation]:
        for field in ("ipv4_private_pools", "ipv4_public_pools"):
            count = sum(1 for _ in _blocks(getattr(request.spec, field)))
            yield from too_many_blocks(f"spec.{field}.pools", count)

    def defaults(self, resource: Any) -> None:
        for pools in (resource.spec.ipv4_private_pools, resource.spec.ipv4_public_pools):
            pools.use_network_pools = pools.use_network_pools or not pools.pools
            for _, block in _blocks(pools):
                default_block(block)

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"vpc.subnet.count": 1}

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        private, public = new.spec.ipv4_private_pools, new.spec.ipv4_public_pools
        yield from network_violations(new, old, reader)
        if public.pools:
            why = "must be empty: public addresses come from the network's pools (use_network_pools)"
            yield Violation("spec.ipv4_public_pools.pools", why)
        if private.pools and private.use_network_pools:
            yield Violation(f"{_POOLS}.use_network_pools", "must be false where pools are given")
        yield from _route_table_violations(new, reader)
        network = find(reader, NETWORK, new.spec.network_id, new.metadata.parent_id)
        if old is not None and _words(private) != _words(old.spec.ipv4_private_pools):
            yield Violation(_POOLS, "the ranges of a subnet cannot be changed; make another subnet")
        elif old is None and network is not None:
            yield from _block_violations(new, network, reader)

    def complete(self, new: Any, old: Any | None, reader: ResourceReader) -> None:
        network = reader.get(new.spec.network_id)
        if old is None and network is not None:
            new.status.state = SubnetStatus.State.Value("READY")
            for source, block in _taken_blocks(new, network, reader):
                _add(new.status.ipv4_private_pools, source.pool_id, block)
                new.status.ipv4_private_cidrs.append(str(block))
        if network is not None:
            show_surroundings(new, network, reader)

    def dependents(self, resource: Any) -> Iterable[str]:
        return (resource.spec.network_id,)

    def check_delete(self, resource: Any, reader: ResourceReader) -> None:
        subnet_id = resource.metadata.id
        users = sorted(set(reader.reservations(subnet_addresses(subnet_id)).values()))
        if users:
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            raise contract.bad_state(
                subnet_id,
                f"Subnet {subnet_id} is in use: {', '.join(users[:3])}{more} have addresses of it."
                " Delete those, or what they belong to, first.",
            )


def show_surroundings(subnet: Any, network: Resource, reader: ResourceReader) -> None:
    """The parts of a subnet's status that follow from its network, as that is now."""
    default_table = NetworkStatus.FromString(network.status).default_route_table_id
    subnet.status.route_table.id = subnet.spec.route_table_id or default_table
    subnet.status.route_table.default = subnet.status.route_table.id == default_table
    del subnet.status.ipv4_public_pools[:]
    for source in public_sources(reader, network):
        _add(subnet.status.ipv4_public_pools, source.pool_id, source.cidr)
    cidrs = [cidr for pool in subnet.status.ipv4_public_pools for cidr in pool.cidrs]
    subnet.status.ipv4_public_cidrs[:] = cidrs


def subnet_ranges(spec: Any, status: Any) -> Iterator[tuple[str, IPv4Network, int]]:
    """The ranges of a subnet that are not disabled: pool, range, longest prefix of an allocation."""
    blocks = [block for _, block in _blocks(spec.ipv4_private_pools)]
    pool_of = {cidr: pool.pool_id for pool in status.ipv4_private_pools for cidr in pool.cidrs}
    for index, cidr in enumerate(status.ipv4_private_cidrs):
        block = blocks[index] if index < len(blocks) else None
        if block is None or block.state != AddressBlockState.Value("DISABLED"):
            longest = block.max_mask_length if block is not None else 32
            yield pool_of[cidr], IPv4Network(cidr), longest


def _blocks(pools: Any) -> Iterator[tuple[str, Any]]:
    """All ranges of a subnet's pools, with the path of each."""
    for index, pool in enumerate(pools.pools):
        for number, block in enumerate(pool.cidrs):
            yield f"pools[{index}].cidrs[{number}]", block


def _words(pools: Any) -> list[str]:
    return [block.cidr for _, block in _blocks(pools)]


def _route_table_violations(new: Any, reader: ResourceReader) -> Iterator[Violation]:
    table_id = new.spec.route_table_id
    row = find(reader, ROUTE_TABLE, table_id, new.metadata.parent_id) if table_id else None
    if table_id and row is None:
        yield missing("spec.route_table_id", ROUTE_TABLE, table_id)
    elif row is not None and RouteTableSpec.FromString(row.spec).network_id != new.spec.network_id:
        yield Violation("spec.route_table_id", f"{table_id} belongs to another network")


def _block_violations(new: Any, network: Resource, reader: ResourceReader) -> Iterator[Violation]:
    sources, chosen = private_sources(reader, network), []
    for path, block in _blocks(new.spec.ipv4_private_pools):
        field = f"{_POOLS}.{path}"
        try:
            requested = wanted(block.cidr)
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


def _taken_blocks(
    subnet: Any, network: Resource, reader: ResourceReader
) -> Iterator[tuple[Source, IPv4Network]]:
    """The subnet's ranges, claimed for it, each with where it comes from."""
    sources = private_sources(reader, network)
    texts = _words(subnet.spec.ipv4_private_pools)
    for text in texts or [""]:
        requested = wanted(text) if text else None
        if requested is not None and requested.network is not None:
            source, block = _source_of(requested.network, sources), requested.network
            assert source is not None, "It was checked before."
        else:
            source, block = _free_block(
                subnet, sources, requested.prefix_length if requested else None, reader
            )
        reader.reserve(pool_blocks(source.pool_id), str(block), subnet.metadata.id)
        reader.reserve(SUBNET_BLOCKS, str(block), subnet.metadata.id)
        yield source, block


def _free_block(
    subnet: Any, sources: list[Source], prefix_length: int | None, reader: ResourceReader
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
    """How long the prefix of a subnet is that only says that it wants something of the pool."""
    free = largest_free_prefix([source.cidr], taken)
    if free is None or free >= _SHARE_PREFIX:
        return free
    return max(free + 1, _FIRST_SHARE_PREFIX) if free == source.cidr.prefixlen else _SHARE_PREFIX


def _add(pools: Any, pool_id: str, block: IPv4Network) -> None:
    found = next((pool for pool in pools if pool.pool_id == pool_id), None) or pools.add(pool_id=pool_id)
    found.cidrs.append(str(block))
