"""Arithmetic of ranges: what is asked for, which block is free, and an order of addresses that spreads."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.services.vpc.rules.lookup import first_free_block, largest_free_prefix, parse_request, shuffled

WITHIN = IPv4Network("10.1.0.0/16")


@pytest.mark.parametrize(
    ("text", "length", "network"),
    [
        ("", 32, None),
        ("/24", 24, None),
        ("10.1.2.3", 32, "10.1.2.3/32"),
        ("10.1.2.0/24", 24, "10.1.2.0/24"),
    ],
)
def test_what_a_cidr_asks_for(text: str, length: int, network: str | None) -> None:
    found = parse_request(text)
    assert (found.prefix_length, str(found.network) if found.network else None) == (length, network)


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(17, 32)), max_size=30), st.integers(16, 32))
@settings(max_examples=200, deadline=None)
def test_a_free_block_is_the_lowest_that_overlaps_nothing(places: list[tuple[int, int]], length: int) -> None:
    taken = [str(IPv4Network((int(WITHIN[0]) + at, prefix), strict=False)) for at, prefix in places]
    found = first_free_block([WITHIN], length, taken)
    networks = [IPv4Network(each) for each in taken]

    def is_free(block: IPv4Network) -> bool:
        return not any(block.overlaps(other) for other in networks)

    if found is not None:
        assert found.subnet_of(WITHIN) and found.prefixlen == length and is_free(found)
    if length <= 24:
        candidates = WITHIN.subnets(new_prefix=length)
        assert found == next((block for block in candidates if is_free(block)), None)


def test_the_largest_free_block() -> None:
    assert largest_free_prefix([WITHIN], []) == 16
    assert largest_free_prefix([WITHIN], ["10.1.0.0/17"]) == 17
    assert largest_free_prefix([WITHIN], ["10.1.0.0/17", "10.1.255.255/32"]) == 18
    assert largest_free_prefix([WITHIN], ["10.0.0.0/8"]) is None


@pytest.mark.parametrize("seed", ["vpcallocation-e00a", "vpcallocation-e00b"])
def test_the_order_of_addresses_has_each_once_and_is_the_seeds(seed: str) -> None:
    within = IPv4Network("10.1.0.0/22")
    found = list(shuffled(within, seed))
    assert sorted(found) == list(within)
    assert found == list(shuffled(within, seed)) != list(shuffled(within, "another"))
