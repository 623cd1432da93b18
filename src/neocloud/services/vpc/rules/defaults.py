"""Default rows of a network: its pool, a route table with a default route, a security group.

The ids that others refer to (the pool in the spec, the route table in the status) are chosen with
the network.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    IpVersion,
    IpVisibility,
    Pool,
    PoolStatus,
    Route,
    RouteStatus,
    RouteTable,
    RouteTableStatus,
    RuleProtocol,
    SecurityGroup,
    SecurityGroupStatus,
    SecurityRule,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.rules.security import INTERNET, complete_rule, default_rule


def network_parts(network: Any, private_block: str, now: datetime) -> Iterator[Resource]:
    """`private_block` is the range of the pool that was chosen for the network, "" where it named its own."""
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
    message: Any, parent_id: str, name: str, now: datetime, *, id_prefix: str = "", owner_id: str = ""
) -> Resource:
    """The row of a message with spec and status."""
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


def _private_pool(network: Any, block: str, now: datetime) -> Resource:
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


def _security(network: Any, now: datetime) -> Iterator[Resource]:
    network_id, project_id = network.metadata.id, network.metadata.parent_id
    group = SecurityGroup()
    group.metadata.id = contract.new_id(vpc.SECURITY_GROUP_ID_PREFIX)
    group.spec.network_id = network_id
    group.status.state = SecurityGroupStatus.State.Value("READY")
    group.status.default = True
    name = f"default-security-group-{network_id}"
    yield row_of(group, project_id, name, now, owner_id=network_id)
    for name, rule in _first_rules(group.metadata.id).items():
        complete_rule(rule)
        prefix, owner = vpc.SECURITY_RULE_ID_PREFIX, group.metadata.id
        yield row_of(rule, owner, name, now, id_prefix=prefix, owner_id=owner)


def _first_rules(group_id: str) -> dict[str, Any]:
    """Members among themselves, everything out, and from anywhere ping and ssh."""
    members = _rule("ANY")
    members.spec.ingress.source_security_group_id = group_id
    ping, ssh, out = _rule("ICMP"), _rule("TCP"), _rule("ANY")
    ping.spec.ingress.source_cidrs.append(INTERNET)
    ssh.spec.ingress.source_cidrs.append(INTERNET)
    ssh.spec.ingress.destination_ports.append(22)
    out.spec.egress.destination_cidrs.append(INTERNET)
    return {"members": members, "ping": ping, "ssh": ssh, "egress": out}


def _rule(protocol: str) -> Any:
    rule = SecurityRule()
    rule.spec.access = RuleAccess.Value("ALLOW")
    rule.spec.protocol = RuleProtocol.Value(protocol)
    default_rule(rule)
    return rule
