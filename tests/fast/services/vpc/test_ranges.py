"""Pools, networks and subnets: which ranges are legal, and that none is given twice (VPC-01)."""

import pytest
from neocloud.messages.nebius.vpc.v1 import PoolStatus

from neocloud.core.contract import ApiError, Code
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.rules.lookup import OWN_RANGE
from tests.fast.services.vpc.world import PROJECT, PlainWorld, Refused, cidrs_of


@pytest.fixture
def world() -> PlainWorld:
    return PlainWorld()


@pytest.mark.parametrize(
    ("cidrs", "why"),
    [
        (["10.0.0.0/33"], "must be an IPv4 address"),
        (["10.0.0.1/24"], "nothing set after its prefix"),
        (["8.8.8.0/24"], "private ranges"),
        (["169.254.0.0/16"], "private ranges"),
        (["0.0.0.0/0"], "private ranges"),
        (["fd00::/64"], "must be an IPv4 address"),
        (["/64"], "only IPv4"),
        (["/24"], "no source pool"),
        (["10.0.0.0/16", "10.0.128.0/24"], "overlaps 10.0.0.0/16"),
        (["10.0.0.0/16", "10.0.0.0/16"], "overlaps 10.0.0.0/16"),
        ([], "at least one range"),
    ],
)
def test_ranges_that_a_pool_cannot_have(world: PlainWorld, cidrs: list[str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        world.pool(*cidrs)


def test_a_pool_takes_what_is_free_of_its_source(world: PlainWorld) -> None:
    source = world.pool("172.20.0.0/22")
    first = world.pool("172.20.1.0/24", "/24", source=source.metadata.id)
    assert list(first.status.cidrs) == ["172.20.1.0/24", "172.20.0.0/24"]
    second = world.pool("/23", source=source.metadata.id)
    assert list(second.status.cidrs) == ["172.20.2.0/23"]
    assert second.status.scope_id == source.status.scope_id
    with pytest.raises(ApiError) as full:
        world.pool("/30", source=source.metadata.id)
    assert full.value.code == Code.RESOURCE_EXHAUSTED
    world.delete(second)
    assert list(world.pool("/30", source=source.metadata.id).status.cidrs) == ["172.20.2.0/30"]


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("172.20.1.0/25", "overlaps 172.20.1.0/24"),
        ("172.20.0.0/20", "must lie in the source pool: 172.20.0.0/22"),
        ("10.0.0.0/24", "must lie in the source pool"),
    ],
)
def test_ranges_that_are_not_the_sources_to_give(world: PlainWorld, cidr: str, why: str) -> None:
    source = world.pool("172.20.0.0/22")
    world.pool("172.20.1.0/24", source=source.metadata.id)
    with pytest.raises(Refused, match=why):
        world.pool(cidr, source=source.metadata.id)


def test_public_ranges_are_the_clouds(world: PlainWorld) -> None:
    with pytest.raises(Refused, match="public ranges are the cloud's"):
        world.pool("203.0.113.0/24", visibility="PUBLIC")
    private = world.pool("172.20.0.0/22")
    with pytest.raises(Refused, match="that of the source pool"):
        world.pool("/24", source=private.metadata.id, visibility="PUBLIC")


def test_a_source_keeps_its_longest_mask(world: PlainWorld) -> None:
    spec = {"version": "IPV4", "visibility": "PRIVATE"}
    source = world.create(vpc.POOL, {**spec, "cidrs": [{"cidr": "172.20.0.0/22", "max_mask_length": 26}]})
    with pytest.raises(Refused, match="must be /26 or larger"):
        world.pool("172.20.0.0/28", source=source.metadata.id)
    with pytest.raises(Refused, match="max_mask_length must be from 22"):
        world.create(vpc.POOL, {**spec, "cidrs": [{"cidr": "172.24.0.0/22", "max_mask_length": 8}]})


def test_a_pool_can_grow_and_give_back_what_nobody_uses(world: PlainWorld) -> None:
    pool = world.pool("172.20.0.0/24", "172.21.0.0/24")
    world.subnet(world.network(pool), "172.20.0.0/26")
    spec = {"version": "IPV4", "visibility": "PRIVATE"}
    grown = world.update(pool, {**spec, "cidrs": [{"cidr": "172.20.0.0/24"}, {"cidr": "172.22.0.0/24"}]})
    assert list(grown.status.cidrs) == ["172.20.0.0/24", "172.22.0.0/24"]
    with pytest.raises(Refused, match="172.20.0.0/24 cannot be removed: subnet-e00"):
        world.update(grown, {**spec, "cidrs": [{"cidr": "172.22.0.0/24"}]})


def test_a_network_without_pools_gets_one_of_its_own(world: PlainWorld) -> None:
    first, second = world.network(), world.network()
    assert [list(PoolStatus.FromString(row.status).cidrs) for row in world.list(vpc.POOL)] == [
        ["10.128.0.0/16"],
        ["10.129.0.0/16"],
    ]
    assert cidrs_of(world.subnet(first)) == ["10.128.0.0/17"]
    assert cidrs_of(world.subnet(first)) == ["10.128.128.0/20"]
    assert cidrs_of(world.subnet(second)) == ["10.129.0.0/17"]


def test_more_networks_than_large_ranges_get_smaller_ones(world: PlainWorld) -> None:
    networks = [world.network() for _ in range(130)]
    assert (
        len({pool for row in world.list(vpc.POOL) for pool in PoolStatus.FromString(row.status).cidrs}) == 130
    )
    assert cidrs_of(world.subnet(networks[128])) == ["10.64.0.0/20"]


def test_a_small_pool_goes_whole_to_the_subnet_that_does_not_choose(world: PlainWorld) -> None:
    network = world.network(world.pool("172.20.5.0/24"))
    assert cidrs_of(world.subnet(network)) == ["172.20.5.0/24"]
    with pytest.raises(ApiError) as full:
        world.subnet(network)
    assert full.value.code == Code.RESOURCE_EXHAUSTED
    assert full.value.details[0].retry_type == full.value.details[0].RetryType.Value("NOTHING")


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("172.20.0.128/25", "overlaps 172.20.0.0/24"),
        ("172.20.0.0/23", "overlaps 172.20.0.0/24"),
        ("172.16.0.0/24", "must lie in a pool of the network: 172.20.0.0/20"),
        ("172.20.9.0/30", "is too small"),
        ("172.20.9.7", "is too small"),
        ("/30", "is too small"),
        ("172.20.9.1/24", "nothing set after its prefix"),
        ("lots", "must be an IPv4 address"),
    ],
)
def test_ranges_that_a_subnet_cannot_have(world: PlainWorld, cidr: str, why: str) -> None:
    network = world.network(world.pool("172.20.0.0/20"))
    world.subnet(network, "172.20.0.0/24")
    with pytest.raises(Refused, match=why):
        world.subnet(network, cidr)


def test_a_subnet_may_leave_the_place_to_the_cloud_or_have_several_ranges(world: PlainWorld) -> None:
    network = world.network(world.pool("172.20.0.0/20"))
    world.subnet(network, "172.20.0.0/24")
    assert cidrs_of(world.subnet(network, "/24", "172.20.8.0/24")) == ["172.20.1.0/24", "172.20.8.0/24"]
    with pytest.raises(Refused, match="overlaps 172.20.9.0/24"):
        world.subnet(network, "172.20.9.0/24", "172.20.9.128/25")


def test_subnets_of_different_networks_and_tenants_do_not_overlap(world: PlainWorld) -> None:
    mine = world.network(world.pool("172.20.0.0/16"))
    theirs = world.network(
        world.pool("172.20.0.0/20", project="project-e00other"), project="project-e00other"
    )
    world.subnet(mine, "172.20.0.0/24")
    with pytest.raises(Refused, match="another network of this machine") as refused:
        world.subnet(theirs, "172.20.0.0/26")
    assert mine.metadata.id not in str(refused.value) and "172.20.0.0/24" not in str(refused.value)
    assert cidrs_of(world.subnet(theirs, "/24")) == ["172.20.1.0/24"]


def test_a_range_kept_for_another_network_cannot_be_taken(world: PlainWorld) -> None:
    world.network()
    greedy = world.network(world.pool("10.128.0.0/15"))
    with pytest.raises(Refused, match="another network of this machine"):
        world.subnet(greedy, "10.128.77.0/24")
    assert cidrs_of(world.subnet(greedy, "/24")) == ["10.129.0.0/24"]


@pytest.mark.parametrize("project", ["project-e00other", ""])
def test_what_is_named_must_be_in_the_same_project(world: PlainWorld, project: str) -> None:
    network = world.network(project="project-e00other")
    for kind in (vpc.SUBNET, vpc.ROUTE_TABLE, vpc.SECURITY_GROUP):
        named = network.metadata.id if project else "vpcnetwork-e00none"
        with pytest.raises(Refused, match="there is no network .* in this project"):
            world.create(kind, {"network_id": named})


def test_a_network_cannot_have_pools_that_overlap_or_are_of_the_wrong_sort(world: PlainWorld) -> None:
    first, second = world.pool("172.20.0.0/16"), world.pool("172.20.4.0/24")
    with pytest.raises(Refused, match="overlap"):
        world.network(first, second)
    with pytest.raises(Refused, match="named twice"):
        world.network(second, second)
    with pytest.raises(Refused, match="is not a public pool"):
        world.create(vpc.NETWORK, {"ipv4_public_pools": {"pools": [{"id": first.metadata.id}]}})


def test_the_ranges_of_a_subnet_stay_while_its_route_table_may_change(world: PlainWorld) -> None:
    network = world.network()
    subnet = world.subnet(network, "10.128.3.0/24")
    pools = {"pools": [{"cidrs": [{"cidr": "10.128.4.0/24"}]}]}
    base = {"network_id": network.metadata.id}
    with pytest.raises(Refused, match="cannot be changed"):
        world.update(subnet, {**base, "ipv4_private_pools": pools})
    table = world.create(vpc.ROUTE_TABLE, base)
    same = {"pools": [{"cidrs": [{"cidr": "10.128.3.0/24"}]}]}
    changed = world.update(subnet, {**base, "ipv4_private_pools": same, "route_table_id": table.metadata.id})
    assert (changed.status.route_table.id, changed.status.route_table.default) == (table.metadata.id, False)
    assert cidrs_of(changed) == ["10.128.3.0/24"]
    with pytest.raises(ApiError, match="is in use by"):
        world.delete(table)
    foreign = world.create(vpc.ROUTE_TABLE, {"network_id": world.network().metadata.id})
    with pytest.raises(Refused, match="another network"):
        world.update(subnet, {**base, "ipv4_private_pools": same, "route_table_id": foreign.metadata.id})


def test_what_is_in_use_cannot_be_deleted(world: PlainWorld) -> None:
    pool = world.pool("172.20.0.0/16")
    network = world.network(pool)
    subnet = world.subnet(network)
    address = world.address(subnet)
    for used, word in ((subnet, "in use"), (pool, "in use by"), (network, "still has subnet")):
        with pytest.raises(ApiError, match=word) as refused:
            world.delete(used)
        assert refused.value.code == Code.FAILED_PRECONDITION
    world.delete(address)
    world.delete(subnet)
    world.delete(network)
    world.delete(pool)
    assert not any(world.claimed[namespace] for namespace in ("vpc/subnet-blocks", "vpc/first-pool-blocks"))


def test_the_defaults_of_a_network_go_only_with_it(world: PlainWorld) -> None:
    world.network()
    for kind in (vpc.ROUTE_TABLE, vpc.SECURITY_GROUP):
        with pytest.raises(ApiError, match="is the default of network"):
            world.delete(world.one(kind))


def test_own_tables_and_groups_hold_a_network(world: PlainWorld) -> None:
    network = world.network()
    for kind in (vpc.ROUTE_TABLE, vpc.SECURITY_GROUP):
        own = world.create(kind, {"network_id": network.metadata.id}, parent_id=PROJECT)
        with pytest.raises(ApiError, match="Delete that first"):
            world.delete(network)
        world.delete(own)
    world.delete(network)


def test_networks_take_the_range_of_their_cloud_first_and_then_the_others(world: PlainWorld) -> None:
    world.reserve(OWN_RANGE, "10.136.0.0/13", OWN_RANGE)
    found = [cidrs_of(world.subnet(world.network())) for _ in range(9)]
    assert found == [*([f"10.{number}.0.0/17"] for number in range(136, 144)), ["10.128.0.0/17"]]
