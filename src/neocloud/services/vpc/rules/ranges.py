"""From which ranges an allocation may get its addresses."""

from ipaddress import IPv4Network

from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.vpc.v1 import SubnetSpec, SubnetStatus
from neocloud.services.vpc.resources import SUBNET, SubnetBlock
from neocloud.services.vpc.rules.giving import Range
from neocloud.services.vpc.rules.places import Source, network_of, public_sources, sources_of
from neocloud.services.vpc.rules.reservations import PUBLIC_ADDRESSES, pool_blocks, subnet_addresses
from neocloud.services.vpc.rules.subnets import subnet_ranges


def ranges_of_subnet(world: ResourceReader, subnet_id: str, is_public: bool) -> list[Range]:
    row = world.get(subnet_id)
    if row is None or row.kind != SUBNET:
        return []
    if is_public:
        network = network_of(world, row)
        sources = public_sources(world, network) if network is not None else []
        return [_public(world, source) for source in sources]
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


def ranges_of_pool(world: ResourceReader, pool_id: str, is_public: bool) -> list[Range]:
    """Of a private pool those that subnets have of it: elsewhere an address would be of no use."""
    if is_public:
        return [_public(world, source) for source in sources_of(world, pool_id)]
    holders = sorted(set(world.reservations(pool_blocks(pool_id)).values()))
    found = [each for holder in holders for each in ranges_of_subnet(world, holder, False)]
    return [each for each in found if each.pool_id == pool_id]


def _public(world: ResourceReader, source: Source) -> Range:
    """Without the parts that were made pools of their own."""
    parts = tuple(IPv4Network(cidr) for cidr in world.reservations(pool_blocks(source.pool_id)))
    return Range(
        namespace=PUBLIC_ADDRESSES,
        cidr=source.cidr,
        max_mask_length=source.max_mask_length,
        reserved=frozenset(),
        pool_id=source.pool_id,
        without=parts,
    )
