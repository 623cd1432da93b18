"""Allocations: addresses that are given in the transaction that asks for them, and never twice.

Each address of an allocation is reserved in its subnet's namespace, or for public ones in the one namespace
of this cloud, so the store decides between two that race for an address.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AllocationStatus,
    IpVersion,
    IpVisibility,
    PoolSpec,
    RouteSpec,
    SubnetSpec,
)
from neocloud.services.vpc.rules.allocator import (
    Range,
    acquire,
    acquire_free,
    ranges_of_pool,
    ranges_of_subnet,
)
from neocloud.services.vpc.rules.cidr import is_too_many, wanted
from neocloud.services.vpc.rules.lookup import find, missing
from neocloud.services.vpc.types import NETWORK, POOL, ROUTE, ROUTE_TABLE, SUBNET, assignment_namespace


class AllocationRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        demand = {"vpc.allocation.count": 1}
        if resource.spec.WhichOneof("ip_spec") == "ipv4_public":
            demand["vpc.ipv4-address.public.count"] = 1
        return demand

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        which = new.spec.WhichOneof("ip_spec")
        if old is not None:
            yield from _change_violations(new, old)
            return
        requested_spec, field = getattr(new.spec, which), f"spec.{which}"
        try:
            requested = wanted(requested_spec.cidr)
        except ValueError as error:
            yield Violation(f"{field}.cidr", str(error))
            return
        if is_too_many(requested.prefix_length):
            yield Violation(f"{field}.cidr", "is too large; an allocation has at most 256 addresses (/24)")
        yield from _pool_violations(field, requested_spec, which, new, reader)
        ranges = _ranges(new, reader)
        if requested.network is not None and ranges:
            why = _why_not(requested.network, ranges)
            if why:
                yield Violation(f"{field}.cidr", why)

    def complete(self, new: Any, old: Any | None, reader: ResourceReader) -> None:
        if old is not None:
            return
        requested = wanted(getattr(new.spec, new.spec.WhichOneof("ip_spec")).cidr)
        ranges = _ranges(new, reader)
        if requested.network is not None:
            found = acquire(requested.network, ranges, new.metadata.id, reader)
        else:
            found = acquire_free(requested.prefix_length, ranges, new.metadata.id, reader)
        if found is None:
            raise _nothing_free(new, requested)
        within, block = found
        new.status.state = AllocationStatus.State.Value("ALLOCATED")
        new.status.details.allocated_cidr = str(block)
        new.status.details.pool_id = within.pool_id
        new.status.details.subnet_id = within.subnet_id
        new.status.details.version = IpVersion.Value("IPV4")

    def check_delete(self, resource: Any, reader: ResourceReader) -> None:
        allocation_id = resource.metadata.id
        holder = next(iter(reader.reservations(assignment_namespace(allocation_id)).values()), "") or _owner(
            allocation_id, reader
        )
        if holder:
            raise contract.bad_state(
                allocation_id,
                f"{allocation_id} is in use by {holder}. Take it from there, or delete that, first.",
            )
        route = next(_routes_to(resource, reader), None)
        if route is not None:
            raise contract.bad_state(
                allocation_id,
                f"{allocation_id} is the next hop of route {route.name or route.id}. Delete that first.",
            )


def _change_violations(new: Any, old: Any) -> Iterator[Violation]:
    """Only from a subnet to the pool that the address is of."""
    which = old.spec.WhichOneof("ip_spec")
    if new.spec.WhichOneof("ip_spec") != which:
        yield Violation("spec", f"must stay {which}; make another allocation")
        return
    after, before = getattr(new.spec, which), getattr(old.spec, which)
    if after == before or after.pool_id == old.status.details.pool_id:
        return
    yield Violation(
        f"spec.{which}.{after.WhichOneof('pool')}",
        f"can only be changed to pool_id {old.status.details.pool_id}, which the address is of",
    )


def _pool_violations(
    field: str, requested: Any, which: str, new: Any, reader: ResourceReader
) -> Iterator[Violation]:
    project_id = new.metadata.parent_id
    if requested.WhichOneof("pool") == "subnet_id":
        if find(reader, SUBNET, requested.subnet_id, project_id) is None:
            yield missing(f"{field}.subnet_id", SUBNET, requested.subnet_id)
        return
    pool = find(reader, POOL, requested.pool_id, project_id)
    visibility = IpVisibility.Value("PUBLIC" if which == "ipv4_public" else "PRIVATE")
    if pool is None:
        yield missing(f"{field}.pool_id", POOL, requested.pool_id)
    elif PoolSpec.FromString(pool.spec).visibility != visibility:
        yield Violation(f"{field}.pool_id", f"{requested.pool_id} is a pool of the other visibility")


def _ranges(allocation: Any, reader: ResourceReader) -> list[Range]:
    which = allocation.spec.WhichOneof("ip_spec")
    requested, is_public = getattr(allocation.spec, which), which == "ipv4_public"
    if requested.WhichOneof("pool") == "subnet_id":
        return ranges_of_subnet(reader, requested.subnet_id, is_public)
    return ranges_of_pool(reader, requested.pool_id, is_public)


def _why_not(block: Any, ranges: list[Range]) -> str:
    within = next((each for each in ranges if block.subnet_of(each.cidr)), None)
    if within is None:
        return f"must lie in {', '.join(str(each.cidr) for each in ranges)}"
    if block.prefixlen > within.max_mask_length:
        return f"must be /{within.max_mask_length} or larger here"
    if any(address in block for address in within.reserved):
        return "has an address that is reserved: the first two and the last of a subnet are"
    if any(block.overlaps(part) for part in within.without):
        return "lies in a part that belongs to another pool"
    return ""


def _nothing_free(new: Any, requested: Any) -> contract.ApiError:
    spec = getattr(new.spec, new.spec.WhichOneof("ip_spec"))
    where = f"subnet {spec.subnet_id}" if spec.WhichOneof("pool") == "subnet_id" else f"pool {spec.pool_id}"
    if requested.network is not None:
        why = f"{requested.network} of {where} is taken. Choose another address, or leave it out to get any."
        return contract.not_enough_resources("vpc.allocation", str(requested.network), why)
    size = f"/{requested.prefix_length}"
    what = "address" if requested.prefix_length == 32 else f"range of {size}"
    why = f"The {where} has no free {what} left. Delete an allocation that is not needed, or use another one."
    return contract.not_enough_resources("vpc.allocation", size, why)


def _owner(allocation_id: str, reader: ResourceReader) -> str:
    row = reader.get(allocation_id)
    return row.owner_id if row is not None and row.owner_id and reader.get(row.owner_id) else ""


def _routes_to(allocation: Any, reader: ResourceReader) -> Iterator[Resource]:
    subnet = reader.get(allocation.status.details.subnet_id) if allocation.status.details.subnet_id else None
    network_id = SubnetSpec.FromString(subnet.spec).network_id if subnet is not None else ""
    if not network_id or (network := reader.get(network_id)) is None or network.kind != NETWORK:
        return
    for table in reader.list(ROUTE_TABLE, network.parent_id):
        for row in reader.list(ROUTE, table.id):
            if RouteSpec.FromString(row.spec).next_hop.allocation.id == allocation.metadata.id:
                yield row
