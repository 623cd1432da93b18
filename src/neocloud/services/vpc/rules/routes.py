"""Route tables and routes: the next hops of a subnet's packets."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AllocationStatus,
    NetworkStatus,
    Route,
    RouteSpec,
    RouteStatus,
    RouteTable,
    RouteTableSpec,
    RouteTableStatus,
    SubnetSpec,
)
from neocloud.services.vpc.rules.lookup import find, missing, network_violations
from neocloud.services.vpc.types import ALLOCATION, NETWORK, ROUTE, SUBNET, address_of


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
