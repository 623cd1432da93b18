"""Routes and filters of a subnet's packets: route tables and routes, security groups and their rules."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.compute.v1 import Instance, InstanceSpec
from neocloud.messages.nebius.vpc.v1 import (
    AllocationStatus,
    NetworkStatus,
    Route,
    RouteSpec,
    RouteStatus,
    RouteTable,
    RouteTableSpec,
    RouteTableStatus,
    RuleDirection,
    RuleProtocol,
    RuleType,
    SecurityGroup,
    SecurityGroupSpec,
    SecurityGroupStatus,
    SecurityRule,
    SecurityRuleSpec,
    SecurityRuleStatus,
    SubnetSpec,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.services.vpc.rules.lookup import find, missing, network_violations
from neocloud.services.vpc.types import (
    ALLOCATION,
    NETWORK,
    ROUTE,
    SECURITY_GROUP,
    SECURITY_RULE,
    SUBNET,
    address_of,
)


class RouteTableRules(Rules[RouteTable]):
    def quota_demand(self, resource: RouteTable) -> Mapping[str, int]:
        return {"vpc.route-table.count": 1}

    def violations(
        self, new: RouteTable, old: RouteTable | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        return network_violations(new, old, reader)

    def complete(self, new: RouteTable, old: RouteTable | None, reader: ResourceReader) -> None:
        new.status.state = RouteTableStatus.State.Value("READY")

    def dependents(self, resource: RouteTable) -> Iterable[str]:
        return (resource.spec.network_id,)

    def check_delete(self, resource: RouteTable, reader: ResourceReader) -> None:
        table_id = resource.metadata.id
        if resource.status.default:
            raise contract.bad_state(
                table_id,
                f"{table_id} is the default of network {resource.spec.network_id} and is deleted with it.",
            )
        users = subnets_with(reader, resource)
        if users:
            raise contract.bad_state(
                table_id,
                f"Route table {table_id} is in use by {', '.join(users)}. Give them another table first.",
            )


class RouteRules(Rules[Route]):
    def owner_id(self, resource: Route) -> str:
        """A route is deleted with its table."""
        return resource.metadata.parent_id

    def quota_demand(self, resource: Route) -> Mapping[str, int]:
        return {"vpc.route.count": 1}

    def violations(self, new: Route, old: Route | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        table = reader.get(new.metadata.parent_id)
        try:
            destination = IPv4Network(new.spec.destination.cidr)
        except ValueError:
            yield Violation("spec.destination.cidr", "must be an IPv4 range such as 10.9.0.0/16 or 0.0.0.0/0")
            return
        for row in reader.list(ROUTE, new.metadata.parent_id):
            if IPv4Network(RouteSpec.FromString(row.spec).destination.cidr) == destination:
                why = f"route {row.name or row.id} of this table has the same destination"
                yield Violation("spec.destination.cidr", why)
        if new.spec.next_hop.WhichOneof("next_hop") == "allocation":
            if table is not None:
                yield from _next_hop_violations(new.spec.next_hop.allocation.id, table, reader)
        elif not new.spec.next_hop.default_egress_gateway:
            yield Violation("spec.next_hop.default_egress_gateway", "must be true where it is chosen")

    def complete(self, new: Route, old: Route | None, reader: ResourceReader) -> None:
        new.status.state = RouteStatus.State.Value("READY")
        new.status.type = RouteStatus.Type.Value("STATIC")
        if new.spec.next_hop.WhichOneof("next_hop") == "allocation":
            allocation = reader.get(new.spec.next_hop.allocation.id)
            if allocation is not None:
                new.status.next_hop.allocation.cidr = f"{address_of(allocation)}/32"
        else:
            new.status.next_hop.default_egress_gateway.SetInParent()

    def dependents(self, resource: Route) -> Iterable[str]:
        return (resource.metadata.parent_id,)


def subnets_with(reader: ResourceReader, table: RouteTable) -> list[str]:
    """Return the ids of the subnets that use the table; the default one serves all that name none."""
    network = reader.get(table.spec.network_id)
    if network is None or network.kind != NETWORK:
        return []
    default_id = NetworkStatus.FromString(network.status).default_route_table_id
    specs = ((row.id, SubnetSpec.FromString(row.spec)) for row in reader.list(SUBNET, network.parent_id))
    return [
        subnet_id
        for subnet_id, spec in specs
        if spec.network_id == network.id and (spec.route_table_id or default_id) == table.metadata.id
    ]


def _next_hop_violations(allocation_id: str, table: Resource, reader: ResourceReader) -> Iterator[Violation]:
    field = "spec.next_hop.allocation.id"
    row = find(reader, ALLOCATION, allocation_id, table.parent_id)
    if row is None:
        yield missing(field, ALLOCATION, allocation_id)
        return
    details = AllocationStatus.FromString(row.status).details
    subnet = reader.get(details.subnet_id) if details.subnet_id else None
    network_id = SubnetSpec.FromString(subnet.spec).network_id if subnet is not None else ""
    if network_id != RouteTableSpec.FromString(table.spec).network_id:
        yield Violation(field, f"{allocation_id} is not a private address of the table's network")
    elif not details.allocated_cidr.endswith("/32"):
        yield Violation(field, f"{allocation_id} is a range; a next hop is one address")


INTERNET = "0.0.0.0/0"
DEFAULT_PRIORITY = 500
_INSTANCE = Instance.DESCRIPTOR.full_name
"""vpc reads the contract's spec of an instance; compute, which is built on vpc, is not imported."""


class SecurityGroupRules(Rules[SecurityGroup]):
    def quota_demand(self, resource: SecurityGroup) -> Mapping[str, int]:
        return {"vpc.security-group.count": 1}

    def violations(
        self, new: SecurityGroup, old: SecurityGroup | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        return network_violations(new, old, reader)

    def complete(self, new: SecurityGroup, old: SecurityGroup | None, reader: ResourceReader) -> None:
        new.status.state = SecurityGroupStatus.State.Value("READY")

    def dependents(self, resource: SecurityGroup) -> Iterable[str]:
        return (resource.spec.network_id,)

    def check_delete(self, resource: SecurityGroup, reader: ResourceReader) -> None:
        group_id, project_id = resource.metadata.id, resource.metadata.parent_id
        if resource.status.default:
            raise contract.bad_state(
                group_id,
                f"{group_id} is the default of network {resource.spec.network_id} and is deleted with it.",
            )
        users = [*_rules_about(reader, group_id, project_id), *_instances_in(reader, group_id, project_id)]
        if users:
            raise contract.bad_state(
                group_id, f"Security group {group_id} still has {', '.join(users)}. Delete that first."
            )


class SecurityRuleRules(Rules[SecurityRule]):
    def defaults(self, resource: SecurityRule) -> None:
        default_rule(resource)

    def owner_id(self, resource: SecurityRule) -> str:
        return resource.metadata.parent_id

    def quota_demand(self, resource: SecurityRule) -> Mapping[str, int]:
        return {"vpc.security-rule.count": 1}

    def violations(
        self, new: SecurityRule, old: SecurityRule | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        spec = new.spec
        side = spec.WhichOneof("match")
        match = getattr(spec, side)
        other = "source" if side == "ingress" else "destination"
        for index, cidr in enumerate(getattr(match, f"{other}_cidrs")):
            if not _is_ipv4_range(cidr):
                yield Violation(f"spec.{side}.{other}_cidrs[{index}]", "must be an IPv4 range")
        if match.destination_ports and spec.protocol == RuleProtocol.Value("ICMP"):
            yield Violation(f"spec.{side}.destination_ports", "ICMP has no ports; leave them out")
        group_id = getattr(match, f"{other}_security_group_id")
        if group_id:
            yield from _group_violations(f"spec.{side}.{other}_security_group_id", group_id, new, reader)

    def complete(self, new: SecurityRule, old: SecurityRule | None, reader: ResourceReader) -> None:
        complete_rule(new)

    def dependents(self, resource: SecurityRule) -> Iterable[str]:
        return (resource.metadata.parent_id,)


def default_rule(rule: SecurityRule) -> None:
    rule.spec.priority = rule.spec.priority or DEFAULT_PRIORITY
    rule.spec.type = rule.spec.type or RuleType.Value("STATEFUL")


def complete_rule(rule: SecurityRule) -> None:
    """Set the status of a security rule, which follows from its spec."""
    spec, status = rule.spec, rule.status
    status.Clear()
    status.state = SecurityRuleStatus.State.Value("READY")
    # The first rule that matches decides, and of two with one priority the one that denies.
    status.effective_priority = 2 * spec.priority + (spec.access != RuleAccess.Value("DENY"))
    if spec.WhichOneof("match") == "ingress":
        match, status.direction = spec.ingress, RuleDirection.Value("INGRESS")
        status.source.security_group_id = match.source_security_group_id
        status.source.cidrs.extend(match.source_cidrs)
    else:
        match, status.direction = spec.egress, RuleDirection.Value("EGRESS")
        status.destination.security_group_id = match.destination_security_group_id
        status.destination.cidrs.extend(match.destination_cidrs)
    status.destination.ports.extend(match.destination_ports)


def _is_ipv4_range(text: str) -> bool:
    try:
        IPv4Network(text)
    except ValueError:
        return False
    return True


def _group_violations(
    field: str, group_id: str, rule: SecurityRule, reader: ResourceReader
) -> Iterator[Violation]:
    own = reader.get(rule.metadata.parent_id)
    if own is None:
        return
    other = find(reader, SECURITY_GROUP, group_id, own.parent_id)
    if other is None:
        yield missing(field, SECURITY_GROUP, group_id)
    elif _network_of(other) != _network_of(own):
        yield Violation(field, f"{group_id} belongs to another network")


def _network_of(group: Resource) -> str:
    return SecurityGroupSpec.FromString(group.spec).network_id


def _rules_about(reader: ResourceReader, group_id: str, project_id: str) -> Iterator[str]:
    """Yield the group's own rules, and those of other groups that name it."""
    for group in reader.list(SECURITY_GROUP, project_id):
        for row in reader.list(SECURITY_RULE, group.id):
            spec = SecurityRuleSpec.FromString(row.spec)
            named = {spec.ingress.source_security_group_id, spec.egress.destination_security_group_id}
            if group.id == group_id or group_id in named:
                yield f"rule {row.name or row.id}"


def _instances_in(reader: ResourceReader, group_id: str, project_id: str) -> Iterator[str]:
    for row in reader.list(_INSTANCE, project_id):
        for interface in InstanceSpec.FromString(row.spec).network_interfaces:
            if group_id in {group.id for group in interface.security_groups}:
                yield f"instance {row.name or row.id}"
