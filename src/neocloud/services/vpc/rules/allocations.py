"""Allocations: addresses reserved in the transaction that requests them, and never twice.

Each address of an allocation is reserved in its subnet's namespace, or for public ones in the one namespace
of this cloud, so the store decides between two requests for the same address.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    Allocation,
    AllocationStatus,
    IPv4PrivateAllocationSpec,
    IPv4PublicAllocationSpec,
    IpVersion,
    IpVisibility,
    PoolSpec,
    RouteSpec,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.services.vpc.rules.lookup import (
    PUBLIC_ADDRESSES,
    CidrRequest,
    Source,
    find,
    is_too_many,
    missing,
    network_of,
    parse_request,
    pool_blocks,
    public_sources,
    shuffled,
    sources_of,
    subnet_addresses,
)
from neocloud.services.vpc.rules.subnets import subnet_ranges
from neocloud.services.vpc.types import (
    NETWORK,
    POOL,
    ROUTE,
    ROUTE_TABLE,
    SUBNET,
    SubnetBlock,
    assignment_namespace,
)

_ATTEMPTS_WITHOUT_READ = 32
"""How many addresses to try before the reservations are read. Where a tenth is free, one of them nearly
always succeeds without that read."""


@dataclass(frozen=True)
class Range:
    """A range whose addresses may be allocated, and the namespace of their reservations."""

    namespace: str
    cidr: IPv4Network
    max_mask_length: int
    reserved: frozenset[IPv4Address]
    pool_id: str
    subnet_id: str = ""
    without: tuple[IPv4Network, ...] = ()

    def may_allocate(self, block: IPv4Network) -> bool:
        if block.prefixlen > self.max_mask_length or not block.subnet_of(self.cidr):
            return False
        is_reserved = any(address in block for address in self.reserved)
        return not is_reserved and not any(block.overlaps(part) for part in self.without)


Allocated = tuple[Range, IPv4Network]
AddressSpec = IPv4PrivateAllocationSpec | IPv4PublicAllocationSpec


class AllocationRules(Rules[Allocation]):
    def quota_demand(self, resource: Allocation) -> Mapping[str, int]:
        demand = {"vpc.allocation.count": 1}
        if is_public(resource):
            demand["vpc.ipv4-address.public.count"] = 1
        return demand

    def violations(
        self, new: Allocation, old: Allocation | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            yield from _change_violations(new, old)
            return
        spec, field = _address_spec(new), f"spec.{new.spec.WhichOneof('ip_spec')}"
        try:
            requested = parse_request(spec.cidr)
        except ValueError as error:
            yield Violation(f"{field}.cidr", str(error))
            return
        if is_too_many(requested.prefix_length):
            yield Violation(f"{field}.cidr", "is too large; an allocation has at most 256 addresses (/24)")
        yield from _pool_violations(field, new, reader)
        ranges = _ranges(new, reader)
        if requested.network is not None and ranges:
            why = _why_not(requested.network, ranges)
            if why:
                yield Violation(f"{field}.cidr", why)

    def complete(self, new: Allocation, old: Allocation | None, reader: ResourceReader) -> None:
        if old is not None:
            return
        requested = parse_request(_address_spec(new).cidr)
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

    def check_delete(self, resource: Allocation, reader: ResourceReader) -> None:
        allocation_id = resource.metadata.id
        held = reader.reservations(assignment_namespace(allocation_id))
        holder = next(iter(held.values()), "") or _owner(allocation_id, reader)
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


def is_public(allocation: Allocation) -> bool:
    return allocation.spec.WhichOneof("ip_spec") == "ipv4_public"


def _address_spec(allocation: Allocation) -> AddressSpec:
    return allocation.spec.ipv4_public if is_public(allocation) else allocation.spec.ipv4_private


def _change_violations(new: Allocation, old: Allocation) -> Iterator[Violation]:
    """An allocation may only change from a subnet to the pool that its address is of."""
    which = old.spec.WhichOneof("ip_spec")
    if new.spec.WhichOneof("ip_spec") != which:
        yield Violation("spec", f"must stay {which}; make another allocation")
        return
    after, before = _address_spec(new), _address_spec(old)
    if after == before or after.pool_id == old.status.details.pool_id:
        return
    yield Violation(
        f"spec.{which}.{after.WhichOneof('pool')}",
        f"can only be changed to pool_id {old.status.details.pool_id}, which the address is of",
    )


def _pool_violations(field: str, new: Allocation, reader: ResourceReader) -> Iterator[Violation]:
    project_id, spec = new.metadata.parent_id, _address_spec(new)
    if spec.WhichOneof("pool") == "subnet_id":
        if find(reader, SUBNET, spec.subnet_id, project_id) is None:
            yield missing(f"{field}.subnet_id", SUBNET, spec.subnet_id)
        return
    pool = find(reader, POOL, spec.pool_id, project_id)
    visibility = IpVisibility.Value("PUBLIC" if is_public(new) else "PRIVATE")
    if pool is None:
        yield missing(f"{field}.pool_id", POOL, spec.pool_id)
    elif PoolSpec.FromString(pool.spec).visibility != visibility:
        yield Violation(f"{field}.pool_id", f"{spec.pool_id} is a pool of the other visibility")


def _why_not(block: IPv4Network, ranges: list[Range]) -> str:
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


def _nothing_free(new: Allocation, requested: CidrRequest) -> contract.ApiError:
    spec = _address_spec(new)
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


def _routes_to(allocation: Allocation, reader: ResourceReader) -> Iterator[Resource]:
    subnet_id = allocation.status.details.subnet_id
    subnet = reader.get(subnet_id) if subnet_id else None
    network_id = SubnetSpec.FromString(subnet.spec).network_id if subnet is not None else ""
    if not network_id or (network := reader.get(network_id)) is None or network.kind != NETWORK:
        return
    for table in reader.list(ROUTE_TABLE, network.parent_id):
        for row in reader.list(ROUTE, table.id):
            if RouteSpec.FromString(row.spec).next_hop.allocation.id == allocation.metadata.id:
                yield row


# Ranges that an allocation may be of, and addresses of them.


def _ranges(allocation: Allocation, reader: ResourceReader) -> list[Range]:
    spec = _address_spec(allocation)
    if spec.WhichOneof("pool") == "subnet_id":
        return _ranges_of_subnet(reader, spec.subnet_id, is_public(allocation))
    return _ranges_of_pool(reader, spec.pool_id, is_public(allocation))


def _ranges_of_subnet(reader: ResourceReader, subnet_id: str, is_public: bool) -> list[Range]:
    row = reader.get(subnet_id)
    if row is None or row.kind != SUBNET:
        return []
    if is_public:
        network = network_of(reader, row)
        sources = public_sources(reader, network) if network is not None else []
        return [_public_range(reader, source) for source in sources]
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


def _ranges_of_pool(reader: ResourceReader, pool_id: str, is_public: bool) -> list[Range]:
    """Return a pool's ranges; of a private pool only those that subnets have."""
    if is_public:
        return [_public_range(reader, source) for source in sources_of(reader, pool_id)]
    holders = sorted(set(reader.reservations(pool_blocks(pool_id)).values()))
    found = [each for holder in holders for each in _ranges_of_subnet(reader, holder, False)]
    return [each for each in found if each.pool_id == pool_id]


def _public_range(reader: ResourceReader, source: Source) -> Range:
    """Return the public range without the parts that are pools of their own."""
    parts = tuple(IPv4Network(cidr) for cidr in reader.reservations(pool_blocks(source.pool_id)))
    return Range(
        namespace=PUBLIC_ADDRESSES,
        cidr=source.cidr,
        max_mask_length=source.max_mask_length,
        reserved=frozenset(),
        pool_id=source.pool_id,
        without=parts,
    )


def acquire(
    block: IPv4Network, ranges: Iterable[Range], holder: str, reader: ResourceReader
) -> Allocated | None:
    """Reserve exactly this block. Return None when any address of it is taken."""
    within = next((each for each in ranges if each.may_allocate(block)), None)
    return (within, block) if within is not None and _reserve(within, block, holder, reader) else None


def acquire_free(
    prefix_length: int, ranges: Iterable[Range], holder: str, reader: ResourceReader
) -> Allocated | None:
    """Reserve any block of this length. Single addresses come from all over the range, in an order that
    depends on the holder's id."""
    for within in ranges:
        block = (
            _free_address(within, holder, reader)
            if prefix_length == 32
            else _first_free(within, prefix_length, holder, reader)
        )
        if block is not None:
            return within, block
    return None


def _free_address(within: Range, holder: str, reader: ResourceReader) -> IPv4Network | None:
    if within.max_mask_length < 32:
        return None
    taken: Iterable[str] | None = None
    for number, address in enumerate(shuffled(within.cidr, holder)):
        if number == _ATTEMPTS_WITHOUT_READ:
            taken = frozenset(reader.reservations(within.namespace))
        block = IPv4Network(address)
        if str(address) in (taken or ()) or not within.may_allocate(block):
            continue
        if reader.reserve(within.namespace, str(address), holder):
            return block
    return None


def _first_free(within: Range, prefix_length: int, holder: str, reader: ResourceReader) -> IPv4Network | None:
    if prefix_length < within.cidr.prefixlen:
        return None
    taken = frozenset(reader.reservations(within.namespace))
    for block in within.cidr.subnets(new_prefix=prefix_length):
        is_free = within.may_allocate(block) and not any(str(address) in taken for address in block)
        if is_free and _reserve(within, block, holder, reader):
            return block
    return None


def _reserve(within: Range, block: IPv4Network, holder: str, reader: ResourceReader) -> bool:
    """Reserve all addresses of the block. A refusal rolls back the transaction."""
    return all(reader.reserve(within.namespace, str(address), holder) for address in block)
