"""Verbs beyond the standard six (lists, the default network) and computed status fields."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.kind import View
from neocloud.core.readers import TransactionReader
from neocloud.core.service import AnyMethod, Call, Method, MethodAlias, NewOperation, Write
from neocloud.core.store.protocol import AlreadyExists, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.compute.v1 import Instance, InstanceSpec
from neocloud.messages.nebius.vpc.v1 import (
    Allocation,
    AllocationStatus,
    CreateDefaultNetworkRequest,
    Pool,
    RouteTable,
    SecurityGroup,
    Subnet,
    SubnetStatus,
)
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.defaults import create_network
from neocloud.services.vpc.rules.allocations import is_public
from neocloud.services.vpc.rules.lookup import pool_blocks
from neocloud.services.vpc.rules.pools import networks_with
from neocloud.services.vpc.rules.subnets import show_network_status
from neocloud.services.vpc.rules.traffic import subnets_with

_API = "nebius.vpc.v1"
_CREATE_DEFAULT = f"{_API}.NetworkService/CreateDefault"
_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 1000
_INSTANCE = Instance.DESCRIPTOR.full_name


class ListRequest(Protocol):
    """The fields that every List request has."""

    parent_id: str
    page_size: int
    page_token: str


# Status fields that follow from other rows when a resource is read.


def view_allocation(allocation: Allocation, tx: Transaction, now: datetime) -> None:
    row = tx.get(allocation.metadata.id)
    allocation.status.static = row is None or not row.owner_id
    for holder_id in tx.reservations(vpc.assignment_namespace(allocation.metadata.id)).values():
        allocation.status.state = AllocationStatus.State.Value("ASSIGNED")
        interface = allocation.status.assignment.network_interface
        interface.instance_id = holder_id
        interface.name = _interface_name(tx.get(holder_id))
        interface.type = interface.Type.Value("PUBLIC" if is_public(allocation) else "PRIMARY")


def view_subnet(subnet: Subnet, tx: Transaction, now: datetime) -> None:
    network = tx.get(subnet.spec.network_id)
    if network is not None:
        show_network_status(subnet, network, TransactionReader(tx, now))


def view_pool(pool: Pool, tx: Transaction, now: datetime) -> None:
    pool.status.assignment.networks.extend(networks_with(TransactionReader(tx, now), pool))
    holders = sorted(set(tx.reservations(pool_blocks(pool.metadata.id)).values()))
    subnets = [row.id for holder in holders if (row := tx.get(holder)) and row.kind == vpc.SUBNET]
    pool.status.assignment.subnets.extend(subnets)


def view_route_table(table: RouteTable, tx: Transaction, now: datetime) -> None:
    table.status.assignment.subnets.extend(subnets_with(TransactionReader(tx, now), table))


def _interface_name(holder: Resource | None) -> str:
    """Return the name of the holder's interface, of which an instance has one here.

    The contract of an Allocation names instances, so vpc reads the contract's spec of one. It does not import
    compute, which is built on vpc.
    """
    if holder is None or holder.kind != _INSTANCE:
        return ""
    interfaces = InstanceSpec.FromString(holder.spec).network_interfaces
    return interfaces[0].name if interfaces else ""


@dataclass(frozen=True)
class ListBy:
    """A method that lists the resources of one kind that belong to a resource of another kind."""

    path: str
    kind: str
    by: str
    """The kind of the resource that is named."""
    field: str
    """The field of the request with its id."""
    permission: str
    belongs: Callable[[Any, Resource], bool]
    """Whether a listed message belongs to the row of the named resource."""
    view: View | None = None

    @property
    def method(self) -> AnyMethod:
        return Method(self.path, self.serve, self.permission, target=self._named_id)

    async def serve(self, call: Call, request: Any) -> Message:
        by_id = self._named_id(request)

        def find(tx: Transaction) -> Message:
            by = tx.get(by_id)
            if by is None or by.kind != self.by:
                raise contract.not_found(self.field.removesuffix("_id"), by_id)
            rows = tx.list(self.kind, parent_id=by.parent_id)[0]
            found = [each for each in map(wire.resource_message, rows) if self.belongs(each, by)]
            return self._page(found, request, f"{self.path}:{by_id}", tx, call)

        return await call.dependencies.store.read(find)

    def _named_id(self, request: Message) -> str:
        return getattr(request, self.field)

    def _page(
        self, found: list[Message], request: ListRequest, scope: str, tx: Transaction, call: Call
    ) -> Message:
        """Return one page in order of creation. Its token is the count of items up to its end."""
        if request.page_size < 0:
            raise contract.bad_field("page_size", "must not be negative")
        first = int(contract.page_after(request.page_token, scope, numbers=1) or 0)
        end = first + min(request.page_size or _DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE)
        items = found[first:end]
        if self.view is not None:
            for item in items:
                self.view(item, tx, call.dependencies.clock.now())
        token = contract.page_token(str(end), scope) if end < len(found) else ""
        return contract.method(self.path).output(items=items, next_page_token=token)


def _is_of_network(resource: Subnet | RouteTable | SecurityGroup, network: Resource) -> bool:
    return resource.spec.network_id == network.id


def _has_source(pool: Pool, source: Resource) -> bool:
    return pool.spec.source_pool_id == source.id


def _is_of_pool(allocation: Allocation, pool: Resource) -> bool:
    return allocation.status.details.pool_id == pool.id


def _is_of_subnet(allocation: Allocation, subnet: Resource) -> bool:
    """Return whether the address is of the subnet, or of a public pool for interfaces in the subnet."""
    pools = SubnetStatus.FromString(subnet.status).ipv4_public_pools
    details = allocation.status.details
    return details.subnet_id == subnet.id or (
        is_public(allocation) and details.pool_id in {pool.pool_id for pool in pools}
    )


def _lists() -> Iterable[ListBy]:
    def by_network(service: str, kind: str, permission: str, view: View | None = None) -> ListBy:
        path = f"{_API}.{service}/ListByNetwork"
        return ListBy(path, kind, vpc.NETWORK, "network_id", permission, _is_of_network, view)

    yield by_network("SubnetService", vpc.SUBNET, "vpc.subnets.list", view_subnet)
    yield by_network("RouteTableService", vpc.ROUTE_TABLE, "vpc.routeTables.list", view_route_table)
    yield by_network("SecurityGroupService", vpc.SECURITY_GROUP, "vpc.securityGroups.list")
    yield ListBy(
        path=f"{_API}.PoolService/ListBySourcePool",
        kind=vpc.POOL,
        by=vpc.POOL,
        field="pool_id",
        permission="vpc.pools.list",
        belongs=_has_source,
        view=view_pool,
    )
    yield ListBy(
        path=f"{_API}.AllocationService/ListByPool",
        kind=vpc.ALLOCATION,
        by=vpc.POOL,
        field="pool_id",
        permission="vpc.allocations.list",
        belongs=_is_of_pool,
        view=view_allocation,
    )
    yield ListBy(
        path=f"{_API}.AllocationService/ListBySubnet",
        kind=vpc.ALLOCATION,
        by=vpc.SUBNET,
        field="subnet_id",
        permission="vpc.allocations.list",
        belongs=_is_of_subnet,
        view=view_allocation,
    )


async def create_default(call: Call, request: CreateDefaultNetworkRequest) -> Write[Operation]:
    """Create a network like the default network of a project, under another name."""
    metadata, now = request.metadata, call.dependencies.clock.now()
    labels = dict(metadata.labels)

    def work(tx: Transaction) -> NewOperation:
        project = tx.get(metadata.parent_id)
        if project is None or not project.parent_id or project.deleted_at is not None:
            raise contract.bad_field("metadata.parent_id", "must be the id of a project")
        try:
            row = create_network(tx, metadata.parent_id, metadata.name, now, labels)
        except AlreadyExists:
            other = tx.find(vpc.NETWORK, metadata.parent_id, metadata.name)
            raise contract.already_exists("network", metadata.name, other.id if other else "") from None
        return NewOperation(row, f"network {row.name}", is_done=False)

    return Write(work)


METHODS: tuple[AnyMethod, ...] = (
    *(each.method for each in _lists()),
    Method(
        _CREATE_DEFAULT,
        create_default,
        "vpc.networks.create",
        target=lambda request: request.metadata.parent_id,
        is_change=True,
    ),
)


def _aggregated(service: str) -> MethodAlias:
    """Return the list over all regions, which is the plain list: a cloud on one machine has one region."""
    plain = f"{_API}.{service}/List"
    request_class = contract.method(plain).input

    def request(aggregated: ListRequest) -> Message:
        return request_class(
            parent_id=aggregated.parent_id, page_size=aggregated.page_size, page_token=aggregated.page_token
        )

    return MethodAlias(f"{_API}.{service}/ListAggregated", plain, request)


ALIASES = tuple(
    _aggregated(service)
    for service in (
        "NetworkService",
        "SubnetService",
        "PoolService",
        "AllocationService",
        "RouteTableService",
        "SecurityGroupService",
    )
)
