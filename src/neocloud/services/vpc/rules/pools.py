"""Pools: ranges of addresses, of another pool or, for private ones, without a source."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    CreatePoolRequest,
    IpVersion,
    IpVisibility,
    NetworkSpec,
    Pool,
    PoolCidr,
    PoolSpec,
    PoolStatus,
    SubnetCidr,
    UpdatePoolRequest,
)
from neocloud.services.vpc.rules.lookup import (
    CidrRequest,
    Source,
    find,
    first_free_block,
    missing,
    overlapping,
    parse_request,
    pool_blocks,
    sources_of,
)
from neocloud.services.vpc.types import NETWORK, POOL, SCOPE_ID_PREFIX

PRIVATE_RANGES = tuple(
    IPv4Network(cidr) for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)
MAX_BLOCKS = 64
"""The most ranges that one pool or subnet may have."""
_IPV4 = IpVersion.Value("IPV4")
_PUBLIC = IpVisibility.Value("PUBLIC")


def too_many_blocks(field: str, count: int) -> Iterable[Violation]:
    """Limit the ranges of a request: each is compared with all others inside the transaction."""
    if count > MAX_BLOCKS:
        yield Violation(field, f"has {count} ranges; at most {MAX_BLOCKS} are allowed")


class PoolRules(Rules[Pool]):
    def request_violations(self, request: CreatePoolRequest | UpdatePoolRequest) -> Iterable[Violation]:
        return too_many_blocks("spec.cidrs", len(request.spec.cidrs))

    def defaults(self, resource: Pool) -> None:
        for block in resource.spec.cidrs:
            default_block(block)

    def quota_demand(self, resource: Pool) -> Mapping[str, int]:
        return {"vpc.pool.count": 1}

    def violations(self, new: Pool, old: Pool | None, reader: ResourceReader) -> Iterable[Violation]:
        spec = new.spec
        if old is not None and spec == old.spec:
            return
        if spec.version != _IPV4:
            yield Violation("spec.version", "must be IPV4; IPv6 is not served here")
            return
        if not spec.cidrs:
            yield Violation("spec.cidrs", "needs at least one range")
        if spec.source_pool_id:
            source = find(reader, POOL, spec.source_pool_id, new.metadata.parent_id)
            if source is None:
                yield missing("spec.source_pool_id", POOL, spec.source_pool_id)
                return
            if PoolSpec.FromString(source.spec).visibility != spec.visibility:
                yield Violation("spec.visibility", f"must be that of the source pool {source.id}")
        elif spec.visibility == _PUBLIC:
            yield Violation(
                "spec.source_pool_id", "is required for a public pool: public ranges are the cloud's"
            )
        yield from self._cidr_violations(new, old, reader)

    def _cidr_violations(self, new: Pool, old: Pool | None, reader: ResourceReader) -> Iterator[Violation]:
        spec, kept = new.spec, _kept(new, old)
        sources = list(sources_of(reader, spec.source_pool_id)) if spec.source_pool_id else []
        siblings: list[str] = []
        if spec.source_pool_id:
            held = reader.reservations(pool_blocks(spec.source_pool_id))
            siblings = [cidr for cidr, holder in held.items() if holder != new.metadata.id]
        chosen: list[str] = []
        for index, block in enumerate(spec.cidrs):
            field = f"spec.cidrs[{index}]"
            try:
                requested = parse_request(kept[index] if index in kept else str(block.cidr))
            except ValueError as error:
                yield Violation(f"{field}.cidr", str(error))
                continue
            yield from mask_violations(field, block, requested)
            if requested.network is None:
                if not spec.source_pool_id:
                    yield Violation(
                        f"{field}.cidr", "must be a range: there is no source pool to take it from"
                    )
                continue
            why = _why_not(requested.network, sources if spec.source_pool_id else None, siblings, chosen)
            if why:
                yield Violation(f"{field}.cidr", why)
            chosen.append(str(requested.network))
        yield from _removal_violations(new, old, kept, reader)

    def complete(self, new: Pool, old: Pool | None, reader: ResourceReader) -> None:
        kept, source_id = _kept(new, old), new.spec.source_pool_id
        found = [
            kept[index] if index in kept else self._reserve_block(new, block, reader)
            for index, block in enumerate(new.spec.cidrs)
        ]
        for gone in set(old.status.cidrs if old else ()) - set(found):
            if source_id:
                reader.release(pool_blocks(source_id), gone)
        new.status.state = PoolStatus.State.Value("READY")
        new.status.cidrs[:] = found
        new.status.scope_id = new.status.scope_id or _scope_id(reader, source_id)

    def _reserve_block(self, new: Pool, block: PoolCidr, reader: ResourceReader) -> str:
        requested, source_id = parse_request(block.cidr), new.spec.source_pool_id
        if not source_id:
            return str(requested.network)
        namespace = pool_blocks(source_id)
        sources = [source.cidr for source in sources_of(reader, source_id)]
        taken = reader.reservations(namespace)
        chosen = requested.network or first_free_block(sources, requested.prefix_length, taken)
        if chosen is None:
            raise contract.not_enough_resources(
                "vpc.pool", block.cidr, f"Pool {source_id} has no free range of {block.cidr} left."
            )
        reader.reserve(namespace, str(chosen), new.metadata.id)
        return str(chosen)

    def check_delete(self, resource: Pool, reader: ResourceReader) -> None:
        pool_id = resource.metadata.id
        users = {*reader.reservations(pool_blocks(pool_id)).values(), *networks_with(reader, resource)}
        if users:
            raise contract.bad_state(
                pool_id,
                f"Pool {pool_id} is in use by {', '.join(sorted(users))}. Delete or change that first.",
            )


def default_block(block: PoolCidr | SubnetCidr) -> None:
    """Fill in the defaults of a range of a pool or a subnet."""
    block.state = block.state or AddressBlockState.Value("AVAILABLE")
    block.max_mask_length = block.max_mask_length or 32


def mask_violations(field: str, block: PoolCidr | SubnetCidr, requested: CidrRequest) -> Iterator[Violation]:
    if not requested.prefix_length <= block.max_mask_length <= 32:
        yield Violation(
            f"{field}.max_mask_length",
            f"must be from {requested.prefix_length}, the range's own length, to 32",
        )


def networks_with(reader: ResourceReader, pool: Pool) -> list[str]:
    """Return the ids of the networks that have this pool."""
    rows = reader.list(NETWORK, pool.metadata.parent_id)
    specs = ((row.id, NetworkSpec.FromString(row.spec)) for row in rows)
    return [
        network_id
        for network_id, spec in specs
        if pool.metadata.id
        in {each.id for each in (*spec.ipv4_private_pools.pools, *spec.ipv4_public_pools.pools)}
    ]


def _kept(new: Pool, old: Pool | None) -> dict[int, str]:
    """Return the ranges that an update leaves as they are, by their index in the new spec."""
    if old is None:
        return {}
    before = [(block.cidr, cidr) for block, cidr in zip(old.spec.cidrs, old.status.cidrs, strict=False)]
    kept: dict[int, str] = {}
    for index, block in enumerate(new.spec.cidrs):
        found = next((pair for pair in before if pair[0] == block.cidr), None)
        if found is not None:
            before.remove(found)
            kept[index] = found[1]
    return kept


def _why_not(block: IPv4Network, sources: list[Source] | None, siblings: list[str], chosen: list[str]) -> str:
    if sources is None and not any(block.subnet_of(private) for private in PRIVATE_RANGES):
        return f"must lie in one of the private ranges {', '.join(map(str, PRIVATE_RANGES))}"
    if sources is not None:
        source = next((each for each in sources if block.subnet_of(each.cidr)), None)
        if source is None:
            there = ", ".join(str(each.cidr) for each in sources)
            return f"must lie in the source pool: {there or 'it is empty'}"
        if block.prefixlen > source.max_mask_length:
            return f"must be /{source.max_mask_length} or larger, as the source pool says"
    other = overlapping(block, [*siblings, *chosen])
    return f"overlaps {other}" if other else ""


def _removal_violations(
    new: Pool, old: Pool | None, kept: dict[int, str], reader: ResourceReader
) -> Iterator[Violation]:
    gone = set(old.status.cidrs if old else ()) - set(kept.values())
    taken = reader.reservations(pool_blocks(new.metadata.id)) if gone else dict[str, str]()
    for cidr in sorted(gone):
        user = overlapping(IPv4Network(cidr), taken)
        if user is not None:
            yield Violation("spec.cidrs", f"{cidr} cannot be removed: {taken[user]} has {user} of it")


def _scope_id(reader: ResourceReader, source_id: str) -> str:
    source = reader.get(source_id) if source_id else None
    return PoolStatus.FromString(source.status).scope_id if source else contract.new_id(SCOPE_ID_PREFIX)
