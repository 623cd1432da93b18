"""Addresses: chosen or any, never two for one, exhaustion is reported so that clients continue (VPC-02)."""

import asyncio
from collections.abc import Awaitable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from neocloud.messages.nebius.vpc.v1 import AllocationStatus

from neocloud.core.contract import ApiError, Code
from neocloud.core.readers import TransactionReader
from neocloud.core.store import Transaction, open_store
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.rules.allocations import Range, acquire_free
from neocloud.testing.waiting import FakeClock
from tests.fast.services.vpc.world import PlainWorld, Refused, address_of


@pytest.fixture
def world() -> PlainWorld:
    return PlainWorld()


@pytest.fixture
def network(world: PlainWorld):
    return world.network(world.pool("172.20.0.0/16"))


@pytest.fixture
def small(world: PlainWorld, network):
    """A subnet of eight addresses, of which five can be given."""
    return world.subnet(network, "172.20.0.0/29")


def test_a_subnet_gives_all_but_its_reserved_addresses_and_then_says_so(world: PlainWorld, small) -> None:
    given = [address_of(world.address(small)) for _ in range(5)]
    assert sorted(given) == [f"172.20.0.{number}/32" for number in range(2, 7)]
    with pytest.raises(ApiError, match="has no free address left") as full:
        world.address(small)
    assert full.value.code == Code.RESOURCE_EXHAUSTED
    [detail] = full.value.details
    assert detail.code == "not_enough_resources"
    assert detail.retry_type == detail.RetryType.Value("NOTHING")


def test_an_address_can_be_given_again_when_it_was_given_back(world: PlainWorld, small) -> None:
    given = [world.address(small) for _ in range(5)]
    world.delete(given[2])
    assert address_of(world.address(small)) == address_of(given[2])


def test_addresses_come_from_all_over_a_large_subnet(world: PlainWorld, network) -> None:
    large = world.subnet(network, "172.20.128.0/17")
    given = {IPv4Address(address_of(world.address(large)).partition("/")[0]) for _ in range(50)}
    assert len(given) == 50
    assert all(address in IPv4Network("172.20.128.0/17") for address in given)
    assert len({int(address) >> 8 for address in given}) > 20


@pytest.mark.parametrize(
    ("cidr", "given"),
    [
        ("", ""),
        ("/32", ""),
        ("172.20.1.9", "172.20.1.9/32"),
        ("172.20.1.9/32", "172.20.1.9/32"),
        ("172.20.1.16/28", "172.20.1.16/28"),
        ("/28", "172.20.1.16/28"),
    ],
)
def test_what_can_be_asked_for(world: PlainWorld, network, cidr: str, given: str) -> None:
    """A free range starts behind the reserved addresses."""
    found = world.address(world.subnet(network, "172.20.1.0/24"), cidr)
    assert address_of(found).startswith("172.20.1.") if not given else address_of(found) == given
    assert found.status.details.subnet_id
    assert found.status.state == AllocationStatus.State.Value("ALLOCATED")


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("172.20.2.5", "must lie in 172.20.1.0/24"),
        ("172.20.1.0", "reserved"),
        ("172.20.1.1", "reserved"),
        ("172.20.1.255", "reserved"),
        ("172.20.1.0/28", "reserved"),
        ("172.20.1.8/28", "nothing set after its prefix"),
        ("172.20.1.0/23", "nothing set after its prefix"),
        ("172.20.0.0/23", "too large"),
        ("/16", "too large"),
        ("/33", "at most /32"),
    ],
)
def test_what_cannot(world: PlainWorld, network, cidr: str, why: str) -> None:
    subnet = world.subnet(network, "172.20.1.0/24")
    with pytest.raises(Refused, match=why):
        world.address(subnet, cidr)


@pytest.mark.parametrize(
    ("first", "second"), [("172.20.1.9", "172.20.1.9"), ("172.20.1.16/28", "172.20.1.20")]
)
def test_a_chosen_address_that_is_taken(world: PlainWorld, network, first: str, second: str) -> None:
    subnet = world.subnet(network, "172.20.1.0/24")
    world.address(subnet, first)
    with pytest.raises(ApiError, match="is taken. Choose another") as refused:
        world.address(subnet, second)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED


def test_a_private_pool_gives_from_the_subnets_that_have_a_part_of_it(world: PlainWorld, network) -> None:
    pool_id = network.spec.ipv4_private_pools.pools[0].id
    spec = {"ipv4_private": {"pool_id": pool_id}}
    with pytest.raises(ApiError, match="no free address"):
        world.create(vpc.ALLOCATION, spec)
    subnet = world.subnet(network, "172.20.7.0/24")
    found = world.create(vpc.ALLOCATION, spec)
    assert (found.status.details.pool_id, found.status.details.subnet_id) == (pool_id, subnet.metadata.id)


def test_a_disabled_range_gives_nothing(world: PlainWorld, network) -> None:
    cidrs = [{"cidr": "172.20.1.0/24", "state": "DISABLED"}, {"cidr": "172.20.2.0/29"}]
    spec = {"network_id": network.metadata.id, "ipv4_private_pools": {"pools": [{"cidrs": cidrs}]}}
    subnet = world.create(vpc.SUBNET, spec)
    assert {address_of(world.address(subnet)) for _ in range(5)} == {f"172.20.2.{n}/32" for n in range(2, 7)}
    with pytest.raises(ApiError, match="no free address"):
        world.address(subnet)


def test_an_allocation_may_move_only_to_the_pool_that_it_is_of(world: PlainWorld, small, network) -> None:
    found = world.address(small)
    pool_id = network.spec.ipv4_private_pools.pools[0].id
    moved = world.update(found, {"ipv4_private": {"pool_id": pool_id}})
    assert address_of(moved) == address_of(found)
    for wrong in ({"ipv4_private": {"pool_id": "vpcpool-e00other"}}, {"ipv4_public": {"pool_id": pool_id}}):
        with pytest.raises(Refused):
            world.update(moved, wrong)


def test_an_address_in_use_cannot_be_deleted(world: PlainWorld, small) -> None:
    found = world.address(small)
    world.reserve(vpc.assignment_namespace(found.metadata.id), "assigned", "computeinstance-e00a")
    with pytest.raises(ApiError, match="in use by computeinstance-e00a"):
        world.delete(found)


async def test_of_those_who_race_for_the_last_addresses_none_gets_anothers(tmp_path: Path) -> None:
    """Two servers on one PostgreSQL: tests/fast/core/store/test_racing_claims.py."""
    store = await open_store(tmp_path / "state.db", bytes(32), FakeClock())
    cidr = IPv4Network("172.20.0.0/28")
    reserved = vpc.SubnetBlock(cidr).reserved
    within = Range("vpcsubnet-e00a/addresses", cidr, 32, reserved, "vpcpool-e00a")

    def take(holder: str) -> Awaitable[str]:
        def work(tx: Transaction) -> str:
            found = acquire_free(32, [within], holder, TransactionReader(tx, FakeClock().now()))
            return str(found[1]) if found else ""

        return store.write(work)

    given = await asyncio.gather(*(take(f"vpcallocation-e00{number}") for number in range(30)))
    assert given.count("") == 17
    assert len(set(given) - {""}) == 13
    await store.close()
