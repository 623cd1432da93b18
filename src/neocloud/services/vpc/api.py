"""What a caller may do beyond the standard verbs: lists by something else, and a default network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neocloud.core import contract, custom_verbs, wire
from neocloud.core.kind import View
from neocloud.core.service import Call, Method, MethodAlias, Write
from neocloud.core.store.protocol import AlreadyExists, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.vpc.v1 import CreateDefaultNetworkRequest, SubnetStatus
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.defaults import make_network
from neocloud.services.vpc.views import view_allocation, view_pool, view_route_table, view_subnet

_API = "nebius.vpc.v1"
_CREATE_DEFAULT = f"{_API}.NetworkService/CreateDefault"
_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 1000


@dataclass(frozen=True)
class ListBy:
    """One list: what it is of, what it is by, and whether a row belongs to it."""

    path: str
    kind: str
    by: str
    field: str
    belongs: Callable[[Any, Resource], bool]
    """Of a message, to the row that the list is by."""
    view: View | None = None

    async def serve(self, call: Call, request: Any) -> Any:
        by_id = getattr(request, self.field)

        def find(tx: Transaction) -> Any:
            by = tx.get(by_id)
            if by is None or by.kind != self.by:
                raise contract.not_found(self.field.removesuffix("_id"), by_id)
            rows = tx.list(self.kind, parent_id=by.parent_id)[0]
            found = [each for each in map(wire.resource_message, rows) if self.belongs(each, by)]
            return self._page(found, request, f"{self.path}:{by_id}", tx, call)

        return await call.dependencies.store.read(find)

    def _page(self, found: list[Any], request: Any, scope: str, tx: Transaction, call: Call) -> Any:
        """In order of creation; the token counts how many were shown."""
        if request.page_size < 0:
            raise contract.bad_field("page_size", "must not be negative")
        first = int(contract.page_after(request.page_token, scope, numbers=1) or 0)
        end = first + min(request.page_size or _DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE)
        items = found[first:end]
        for item in items if self.view is not None else ():
            self.view(item, tx, call.dependencies.clock.now())  # pyright: ignore[reportOptionalCall]
        token = contract.page_token(str(end), scope) if end < len(found) else ""
        return contract.method(self.path).output(items=items, next_page_token=token)


async def create_default(call: Call, request: CreateDefaultNetworkRequest) -> Write[Operation]:
    """A network as a project starts with, under another name."""
    metadata, now = request.metadata, call.dependencies.clock.now()
    labels = dict(metadata.labels)

    def work(tx: Transaction) -> Any:
        project = tx.get(metadata.parent_id)
        if project is None or not project.parent_id or project.deleted_at is not None:
            raise contract.bad_field("metadata.parent_id", "must be the id of a project")
        try:
            row = make_network(tx, metadata.parent_id, metadata.name, now, labels)
        except AlreadyExists:
            other = tx.find(vpc.NETWORK, metadata.parent_id, metadata.name)
            raise contract.already_exists("network", metadata.name, other.id if other else "") from None
        title = f"network {row.name}"
        return custom_verbs.pending(tx, call, request, row, path=_CREATE_DEFAULT, title=title)

    return Write(work)


def _is_of_network(resource: Any, network: Resource) -> bool:
    return resource.spec.network_id == network.id


def _has_source(pool: Any, source: Resource) -> bool:
    return pool.spec.source_pool_id == source.id


def _is_of_pool(allocation: Any, pool: Resource) -> bool:
    return allocation.status.details.pool_id == pool.id


def _is_of_subnet(allocation: Any, subnet: Resource) -> bool:
    """Also a public address that something in the subnet could have."""
    pools = SubnetStatus.FromString(subnet.status).ipv4_public_pools
    details = allocation.status.details
    is_public = allocation.spec.WhichOneof("ip_spec") == "ipv4_public"
    return details.subnet_id == subnet.id or (
        is_public and details.pool_id in {pool.pool_id for pool in pools}
    )


LISTS = (
    ListBy(
        f"{_API}.SubnetService/ListByNetwork",
        vpc.SUBNET,
        vpc.NETWORK,
        "network_id",
        _is_of_network,
        view_subnet,
    ),
    ListBy(
        f"{_API}.RouteTableService/ListByNetwork",
        vpc.ROUTE_TABLE,
        vpc.NETWORK,
        "network_id",
        _is_of_network,
        view_route_table,
    ),
    ListBy(
        f"{_API}.SecurityGroupService/ListByNetwork",
        vpc.SECURITY_GROUP,
        vpc.NETWORK,
        "network_id",
        _is_of_network,
    ),
    ListBy(f"{_API}.PoolService/ListBySourcePool", vpc.POOL, vpc.POOL, "pool_id", _has_source, view_pool),
    ListBy(
        f"{_API}.AllocationService/ListByPool",
        vpc.ALLOCATION,
        vpc.POOL,
        "pool_id",
        _is_of_pool,
        view_allocation,
    ),
    ListBy(
        f"{_API}.AllocationService/ListBySubnet",
        vpc.ALLOCATION,
        vpc.SUBNET,
        "subnet_id",
        _is_of_subnet,
        view_allocation,
    ),
)
_PERMISSIONS = {
    vpc.SUBNET: "vpc.subnets.list",
    vpc.ROUTE_TABLE: "vpc.routeTables.list",
    vpc.SECURITY_GROUP: "vpc.securityGroups.list",
    vpc.POOL: "vpc.pools.list",
    vpc.ALLOCATION: "vpc.allocations.list",
}

METHODS = (
    *(
        Method(
            each.path,
            each.serve,
            _PERMISSIONS[each.kind],
            target=lambda request, field=each.field: getattr(request, field),
        )
        for each in LISTS
    ),
    Method(
        _CREATE_DEFAULT,
        create_default,
        "vpc.networks.create",
        target=lambda request: request.metadata.parent_id,
        is_change=True,
    ),
)


def _aggregated(service: str) -> MethodAlias:
    """Over all regions; a cloud on one machine has one."""
    plain = f"{_API}.{service}/List"
    request_class = contract.method(plain).input

    def request(aggregated: Any) -> Any:
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
