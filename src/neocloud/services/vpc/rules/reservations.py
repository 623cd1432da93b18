"""The namespaces in which ranges and addresses are reserved, so that none is allocated twice."""

from collections.abc import Mapping

from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.vpc.v1 import PoolSpec
from neocloud.services.vpc.types import POOL

SUBNET_BLOCKS = "vpc/subnet-blocks"
"""Of all networks: a machine has one routing table, so no two subnets on it may overlap."""
FIRST_POOL_BLOCKS = "vpc/first-pool-blocks"
"""Of the pools that networks get when they name none, held by the pool; kept free for them."""
OWN_RANGE = "vpc/own-range"
"""Where this cloud takes first pools from before it tries the ranges that other clouds on the host prefer.
Held by no resource, so it stays."""
PUBLIC_ADDRESSES = "vpc/public-addresses"
"""Of all projects: their public pools are windows to one range."""


def pool_blocks(pool_id: str) -> str:
    """What was taken out of a pool: by pools, by subnets."""
    return f"{pool_id}/blocks"


def subnet_addresses(subnet_id: str) -> str:
    return f"{subnet_id}/addresses"


def taken_for_subnets(reader: ResourceReader, pool_id: str) -> Mapping[str, str]:
    """What a new subnet must keep clear of when its range comes from this pool, and who holds it."""
    root = root_of(reader, pool_id)
    first = reader.reservations(FIRST_POOL_BLOCKS).items()
    return {
        **reader.reservations(pool_blocks(pool_id)),
        **reader.reservations(SUBNET_BLOCKS),
        **{cidr: holder for cidr, holder in first if holder != root},
    }


def root_of(reader: ResourceReader, pool_id: str) -> str:
    """The pool that the pool's ranges come from in the end."""
    row = reader.get(pool_id)
    while row is not None and row.kind == POOL:
        pool_id = row.id
        source_id = PoolSpec.FromString(row.spec).source_pool_id
        row = reader.get(source_id) if source_id else None
    return pool_id
