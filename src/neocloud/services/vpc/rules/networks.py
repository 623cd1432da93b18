"""Networks: which pools they may have, and the default rows created with them."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    IpVisibility,
    PoolSpec,
    RouteTableSpec,
    SecurityGroupSpec,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.services.vpc.rules.cidr import first_free_block
from neocloud.services.vpc.rules.defaults import network_parts
from neocloud.services.vpc.rules.lookup import find, missing, sources_of
from neocloud.services.vpc.rules.reservations import FIRST_POOL_BLOCKS, OWN_RANGE, SUBNET_BLOCKS
from neocloud.services.vpc.types import (
    POOL,
    POOL_ID_PREFIX,
    ROUTE_TABLE,
    ROUTE_TABLE_ID_PREFIX,
    SECURITY_GROUP,
    SUBNET,
)

PUBLIC_POOL_NAME = "default-public-pool"
"""Each project has one: a window to the public range of this cloud."""
_FIRST_POOLS = ((IPv4Network("10.128.0.0/9"), 16), (IPv4Network("10.64.0.0/10"), 20))
"""Where the pool of a network that names none comes from, and its prefix length; the second when all of the
first are taken."""
_OWN_PREFIX_LENGTH = 16
_USERS = (
    (SUBNET, SubnetSpec, "subnet"),
    (ROUTE_TABLE, RouteTableSpec, "route table"),
    (SECURITY_GROUP, SecurityGroupSpec, "security group"),
)


class NetworkRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"vpc.network.count": 1}

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        private, public = new.spec.ipv4_private_pools.pools, new.spec.ipv4_public_pools.pools
        yield from _pool_violations("ipv4_private_pools", private, "PRIVATE", new, reader)
        yield from _pool_violations("ipv4_public_pools", public, "PUBLIC", new, reader)
        ranges = [(pool.id, source.cidr) for pool in private for source in sources_of(reader, pool.id)]
        for (first_id, first), (second_id, second) in combinations(ranges, 2):
            if first.overlaps(second):
                why = f"{first} of {first_id} and {second} of {second_id} overlap"
                yield Violation("spec.ipv4_private_pools.pools", why)
        if old is not None:
            if not private:
                yield Violation("spec.ipv4_private_pools.pools", "needs at least one pool")
            yield from _loss_violations(new, old, reader)

    def complete(self, new: Any, old: Any | None, reader: ResourceReader) -> None:
        if not new.spec.ipv4_public_pools.pools:
            pool = reader.find(POOL, new.metadata.parent_id, PUBLIC_POOL_NAME)
            if pool is not None:
                new.spec.ipv4_public_pools.pools.add(id=pool.id)
        if old is not None:
            return
        new.status.default_route_table_id = contract.new_id(ROUTE_TABLE_ID_PREFIX)
        if not new.spec.ipv4_private_pools.pools:
            pool_id = contract.new_id(POOL_ID_PREFIX)
            new.spec.ipv4_private_pools.pools.add(id=pool_id)
            reader.reserve(FIRST_POOL_BLOCKS, str(_free_block(reader)), pool_id)

    def companions(self, resource: Any, reader: ResourceReader) -> Iterable[Resource]:
        return network_parts(resource, _chosen_block(resource, reader), reader.now)

    def check_delete(self, resource: Any, reader: ResourceReader) -> None:
        network_id = resource.metadata.id
        users = [
            f"{word} {row.name or row.id}"
            for kind, spec, word in _USERS
            for row in reader.list(kind, resource.metadata.parent_id)
            if row.owner_id != network_id and spec.FromString(row.spec).network_id == network_id
        ]
        if users:
            raise contract.bad_state(
                network_id,
                f"Network {network_id} still has {', '.join(sorted(users))}. Delete that first.",
            )


def _pool_violations(
    part: str, pools: Any, visibility: str, network: Any, reader: ResourceReader
) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, pool in enumerate(pools):
        field = f"spec.{part}.pools[{index}].id"
        row = find(reader, POOL, pool.id, network.metadata.parent_id)
        if row is None:
            yield missing(field, POOL, pool.id)
        elif PoolSpec.FromString(row.spec).visibility != IpVisibility.Value(visibility):
            yield Violation(field, f"{pool.id} is not a {visibility.lower()} pool")
        elif pool.id in seen:
            yield Violation(field, f"{pool.id} is named twice")
        seen.add(pool.id)


def _loss_violations(new: Any, old: Any, reader: ResourceReader) -> Iterator[Violation]:
    """A pool that subnets of the network have ranges of cannot be taken away."""
    gone = {pool.id for pool in old.spec.ipv4_private_pools.pools}
    gone -= {pool.id for pool in new.spec.ipv4_private_pools.pools}
    for row in reader.list(SUBNET, new.metadata.parent_id) if gone else ():
        if SubnetSpec.FromString(row.spec).network_id != new.metadata.id:
            continue
        used = gone & {pool.pool_id for pool in SubnetStatus.FromString(row.status).ipv4_private_pools}
        for pool_id in sorted(used):
            why = f"{pool_id} cannot be taken away: subnet {row.id} has a range of it"
            yield Violation("spec.ipv4_private_pools.pools", why)


def _free_block(reader: ResourceReader) -> IPv4Network:
    taken = [*reader.reservations(FIRST_POOL_BLOCKS), *reader.reservations(SUBNET_BLOCKS)]
    own = [(IPv4Network(cidr), _OWN_PREFIX_LENGTH) for cidr in reader.reservations(OWN_RANGE)]
    for within, prefix_length in (*own, *_FIRST_POOLS):
        found = first_free_block([within], prefix_length, taken)
        if found is not None:
            return found
    raise contract.not_enough_resources(
        "vpc.pool",
        "1",
        "All private ranges for new networks are taken on this machine. Delete a network, or make a pool"
        " with a free range and name it in spec.ipv4_private_pools.",
    )


def _chosen_block(network: Any, reader: ResourceReader) -> str:
    pools = {pool.id for pool in network.spec.ipv4_private_pools.pools}
    held = reader.reservations(FIRST_POOL_BLOCKS).items()
    return next((cidr for cidr, holder in held if holder in pools and reader.get(holder) is None), "")
