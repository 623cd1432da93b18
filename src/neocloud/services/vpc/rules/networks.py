"""Networks: the pools they may have, and the default rows created with them.

The ids that other rows refer to (the pool in the spec, the route table in the status) are chosen with the
network.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from ipaddress import IPv4Network
from itertools import combinations

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    IpVersion,
    IpVisibility,
    Network,
    NetworkPool,
    Pool,
    PoolSpec,
    PoolStatus,
    Route,
    RouteStatus,
    RouteTable,
    RouteTableSpec,
    RouteTableStatus,
    RuleProtocol,
    SecurityGroup,
    SecurityGroupSpec,
    SecurityGroupStatus,
    SecurityRule,
    Subnet,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.rules.lookup import (
    FIRST_POOL_BLOCKS,
    OWN_RANGE,
    SUBNET_BLOCKS,
    find,
    first_free_block,
    missing,
    sources_of,
)
from neocloud.services.vpc.rules.traffic import INTERNET, complete_rule, default_rule
from neocloud.services.vpc.types import (
    POOL,
    POOL_ID_PREFIX,
    ROUTE_TABLE,
    ROUTE_TABLE_ID_PREFIX,
    SECURITY_GROUP,
    SUBNET,
)

PUBLIC_POOL_NAME = "default-public-pool"
"""Each project has one; it covers the public range of this cloud."""
_DEFAULT_POOLS = ((IPv4Network("10.128.0.0/9"), 16), (IPv4Network("10.64.0.0/10"), 20))
"""The ranges that pools of networks that name none are taken from, with the prefix length of such a pool. The
second range is used when the first is full."""
_OWN_PREFIX_LENGTH = 16
_USERS = (
    (SUBNET, SubnetSpec, "subnet"),
    (ROUTE_TABLE, RouteTableSpec, "route table"),
    (SECURITY_GROUP, SecurityGroupSpec, "security group"),
)


DefaultResource = Network | Pool | Route | RouteTable | SecurityGroup | SecurityRule | Subnet


class NetworkRules(Rules[Network]):
    def quota_demand(self, resource: Network) -> Mapping[str, int]:
        return {"vpc.network.count": 1}

    def violations(self, new: Network, old: Network | None, reader: ResourceReader) -> Iterable[Violation]:
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

    def complete(self, new: Network, old: Network | None, reader: ResourceReader) -> None:
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

    def companions(self, resource: Network, reader: ResourceReader) -> Iterable[Resource]:
        return default_rows(resource, _chosen_block(resource, reader), reader.now)

    def check_delete(self, resource: Network, reader: ResourceReader) -> None:
        network_id = resource.metadata.id
        users = [
            f"{label} {row.name or row.id}"
            for kind, spec, label in _USERS
            for row in reader.list(kind, resource.metadata.parent_id)
            if row.owner_id != network_id and spec.FromString(row.spec).network_id == network_id
        ]
        if users:
            raise contract.bad_state(
                network_id,
                f"Network {network_id} still has {', '.join(sorted(users))}. Delete that first.",
            )


def _pool_violations(
    part: str, pools: Iterable[NetworkPool], visibility: str, network: Network, reader: ResourceReader
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


def _loss_violations(new: Network, old: Network, reader: ResourceReader) -> Iterator[Violation]:
    """A pool cannot be removed from a network while subnets of the network have ranges of it."""
    gone = {pool.id for pool in old.spec.ipv4_private_pools.pools}
    gone -= {pool.id for pool in new.spec.ipv4_private_pools.pools}
    for row in reader.list(SUBNET, new.metadata.parent_id) if gone else ():
        if SubnetSpec.FromString(row.spec).network_id != new.metadata.id:
            continue
        used = gone & {pool.pool_id for pool in SubnetStatus.FromString(row.status).ipv4_private_pools}
        for pool_id in sorted(used):
            why = f"{pool_id} cannot be removed: subnet {row.id} has a range of it"
            yield Violation("spec.ipv4_private_pools.pools", why)


def _free_block(reader: ResourceReader) -> IPv4Network:
    taken = [*reader.reservations(FIRST_POOL_BLOCKS), *reader.reservations(SUBNET_BLOCKS)]
    own = [(IPv4Network(cidr), _OWN_PREFIX_LENGTH) for cidr in reader.reservations(OWN_RANGE)]
    for within, prefix_length in (*own, *_DEFAULT_POOLS):
        found = first_free_block([within], prefix_length, taken)
        if found is not None:
            return found
    raise contract.not_enough_resources(
        "vpc.pool",
        "1",
        "All private ranges for new networks are taken on this machine. Delete a network, or create a pool"
        " with a free range and name it in spec.ipv4_private_pools.",
    )


def _chosen_block(network: Network, reader: ResourceReader) -> str:
    pools = {pool.id for pool in network.spec.ipv4_private_pools.pools}
    held = reader.reservations(FIRST_POOL_BLOCKS).items()
    return next((cidr for cidr, holder in held if holder in pools and reader.get(holder) is None), "")


def default_rows(network: Network, private_block: str, now: datetime) -> Iterator[Resource]:
    """Return a network's pool, route table with a default route, and security group with rules.

    `private_block` is the range of the pool that was chosen for the network, "" where it named its own.
    """
    network_id = network.metadata.id
    if private_block:
        yield _private_pool(network, private_block, now)
    table = RouteTable()
    table.metadata.id = network.status.default_route_table_id
    table.spec.network_id = network_id
    table.status.state = RouteTableStatus.State.Value("READY")
    table.status.default = True
    name = f"default-route-table-{network_id}"
    yield row_of(table, network.metadata.parent_id, name, now, owner_id=network_id)
    yield _default_route(table.metadata.id, now)
    yield from _security(network, now)


def row_of(
    message: DefaultResource,
    parent_id: str,
    name: str,
    now: datetime,
    *,
    id_prefix: str = "",
    owner_id: str = "",
) -> Resource:
    """Return the row of a message that has a spec and a status."""
    return Resource(
        id=message.metadata.id or contract.new_id(id_prefix),
        kind=message.DESCRIPTOR.full_name,
        parent_id=parent_id,
        name=name,
        created_at=now,
        updated_at=now,
        spec=message.spec.SerializeToString(),
        status=message.status.SerializeToString(),
        state=wire.state_of(message),
        owner_id=owner_id,
    )


def _private_pool(network: Network, block: str, now: datetime) -> Resource:
    pool = Pool()
    pool.metadata.id = network.spec.ipv4_private_pools.pools[0].id
    pool.spec.version = IpVersion.Value("IPV4")
    pool.spec.visibility = IpVisibility.Value("PRIVATE")
    pool.spec.cidrs.add(cidr=block, state=AddressBlockState.Value("AVAILABLE"), max_mask_length=32)
    pool.status.state = PoolStatus.State.Value("READY")
    pool.status.cidrs.append(block)
    pool.status.scope_id = contract.new_id(vpc.SCOPE_ID_PREFIX)
    network_id = network.metadata.id
    name = f"default-private-pool-{network_id}"
    return row_of(pool, network.metadata.parent_id, name, now, owner_id=network_id)


def _default_route(table_id: str, now: datetime) -> Resource:
    route = Route()
    route.spec.destination.cidr = INTERNET
    route.spec.next_hop.default_egress_gateway = True
    route.status.state = RouteStatus.State.Value("READY")
    route.status.type = RouteStatus.Type.Value("STATIC")
    route.status.next_hop.default_egress_gateway.SetInParent()
    return row_of(route, table_id, "default-egress", now, id_prefix=vpc.ROUTE_ID_PREFIX, owner_id=table_id)


def _security(network: Network, now: datetime) -> Iterator[Resource]:
    network_id, project_id = network.metadata.id, network.metadata.parent_id
    group = SecurityGroup()
    group.metadata.id = contract.new_id(vpc.SECURITY_GROUP_ID_PREFIX)
    group.spec.network_id = network_id
    group.status.state = SecurityGroupStatus.State.Value("READY")
    group.status.default = True
    name = f"default-security-group-{network_id}"
    yield row_of(group, project_id, name, now, owner_id=network_id)
    for name, rule in _default_rules(group.metadata.id).items():
        complete_rule(rule)
        prefix, owner = vpc.SECURITY_RULE_ID_PREFIX, group.metadata.id
        yield row_of(rule, owner, name, now, id_prefix=prefix, owner_id=owner)


def _default_rules(group_id: str) -> dict[str, SecurityRule]:
    """Allow members to reach each other and everything outside, and ping and ssh from anywhere."""
    members = _rule("ANY")
    members.spec.ingress.source_security_group_id = group_id
    ping, ssh, out = _rule("ICMP"), _rule("TCP"), _rule("ANY")
    ping.spec.ingress.source_cidrs.append(INTERNET)
    ssh.spec.ingress.source_cidrs.append(INTERNET)
    ssh.spec.ingress.destination_ports.append(22)
    out.spec.egress.destination_cidrs.append(INTERNET)
    return {"members": members, "ping": ping, "ssh": ssh, "egress": out}


def _rule(protocol: str) -> SecurityRule:
    rule = SecurityRule()
    rule.spec.access = RuleAccess.Value("ALLOW")
    rule.spec.protocol = RuleProtocol.Value(protocol)
    default_rule(rule)
    return rule
