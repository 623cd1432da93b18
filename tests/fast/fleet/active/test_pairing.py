"""Nodes and links at fault when pairs fail; on fleets whose faults are known."""

import random
from collections.abc import Callable, Collection
from itertools import combinations

import pytest

from neocloud.fleet.active.catalogue import named
from neocloud.fleet.active.pairing import (
    PARTNERS,
    Blame,
    Edge,
    Meeting,
    Pair,
    Speeds,
    blame,
    choose_pairs,
    pair_of,
    worthwhile_pairs,
)
from neocloud.fleet.active.schedule import DAILY, RETRY, WEEKLY
from neocloud.fleet.policy.limits import DAY

NOW = 100 * DAY
ROUNDS = 4
"""After so many rounds in which every node is idle, a bad node is named."""


class Pool:
    """Nodes whose pairs fail as `fails` says, measured in rounds of a minute."""

    def __init__(
        self, nodes: int, fails: Callable[[Pair], bool], leaves: dict[str, str] | None = None
    ) -> None:
        self.names = [f"n{number:02}" for number in range(nodes)]
        self.fails, self.leaves, self.now = fails, leaves or {}, NOW
        self.edges: dict[Pair, Edge] = {}
        self.met: dict[Pair, Meeting] = {}

    def said(self) -> Blame:
        return blame(self.edges.values(), self.leaves)

    def round(self, idle: Collection[str] | None = None) -> list[Pair]:
        free = self.names if idle is None else idle
        chosen = worthwhile_pairs(free, len(self.names), [self.said()], self.met, self.now)
        for pair in chosen:
            is_bad, before = self.fails(pair), self.edges.get(pair)
            failures = (before.failures if before else 0) + 1 if is_bad else 0
            self.edges[pair] = Edge(pair, is_bad, failures)
            self.met[pair] = Meeting(self.now, self.now)
        self.now += 60
        return chosen


def with_bad(*bad: str) -> Callable[[Pair], bool]:
    return lambda pair: bool(set(bad) & set(pair))


@pytest.mark.parametrize("nodes", range(3, 14))
def test_a_single_bad_node_is_named_within_four_rounds_and_no_other_ever(nodes: int) -> None:
    for number in range(nodes):
        bad = f"n{number:02}"
        pool = Pool(nodes, with_bad(bad))
        for done in range(12):
            pool.round()
            assert set(pool.said().nodes) <= {bad} and not pool.said().links
            assert done + 1 < ROUNDS or set(pool.said().nodes) == {bad}, (bad, done, pool.edges)
        assert not pool.said().suspects


@pytest.mark.parametrize("seed", range(40))
def test_with_nodes_that_come_and_go_no_good_one_is_ever_named(seed: int) -> None:
    """Whichever nodes are idle, and with more than one bad node: a good pair proves both of its ends."""
    chance = random.Random(seed)
    nodes, count = chance.randint(3, 16), chance.randint(0, 3)
    bad = chance.sample([f"n{number:02}" for number in range(nodes)], min(count, nodes - 2))
    pool = Pool(nodes, with_bad(*bad))
    for _ in range(60):
        pool.round([each for each in pool.names if chance.random() < 0.6])
        assert set(pool.said().nodes) <= set(bad)
        assert not pool.said().links
    if nodes - len(bad) > 2:
        assert set(pool.said().nodes) == set(bad) and not pool.said().suspects


@pytest.mark.parametrize("nodes", range(4, 10))
def test_two_nodes_that_fail_only_with_each_other_name_their_link(nodes: int) -> None:
    for pair in combinations([f"n{number:02}" for number in range(nodes)], 2):
        pool = Pool(nodes, lambda each, pair=pair: each == pair)
        for _ in range(8):
            pool.round()
            assert not pool.said().nodes and set(pool.said().links) <= {pair}
        if pair in pool.met:  # with two partners a week not every pair is measured
            assert set(pool.said().links) == {pair} and "both pass with others" in pool.said().links[pair]
            assert not pool.said().suspects
    assert pair_of("n01", "n00") in Pool(2, with_bad()).round()


def test_of_two_nodes_none_is_named_and_it_says_why() -> None:
    pool = Pool(2, with_bad("n00"))
    for _ in range(5):
        pool.round()
    said = pool.said()
    assert not said.nodes and not said.links and set(said.suspects) == {"n00", "n01"}
    assert said.suspects["n00"] == (
        "it fails with n01, and no node that is known good was idle to tell which of them it is"
    )


def test_a_suspect_is_measured_with_a_node_known_good_before_others_are_due() -> None:
    pool = Pool(8, with_bad("n03"))
    assert pool.round() == [("n00", "n01"), ("n02", "n03"), ("n04", "n05"), ("n06", "n07")]
    again = pool.round()
    assert [each for each in again if "n02" in each or "n03" in each] == [("n00", "n02"), ("n01", "n03")]
    said = pool.said()
    assert set(said.nodes) == {"n03"} and "n02" in said.good, (
        "the one that failed again, the other is cleared"
    )
    assert "it fails with n01, n02, which pass with others" in said.nodes["n03"]


def test_one_failure_of_a_pair_names_no_link() -> None:
    """Somebody else's traffic may have been in the way: the pair is measured again."""
    failures = iter([True])
    pool = Pool(6, lambda pair: pair == ("n00", "n01") and next(failures, False))
    for _ in range(5):
        pool.round()
        assert not pool.said().nodes and not pool.said().links
    assert not pool.said().suspects


def test_links_between_leaves_name_the_switch_and_no_node() -> None:
    """All links of leaf b to other leaves fail; within it all is well."""
    leaves = {f"n{number:02}": "abc"[number // 4] for number in range(12)}
    crossing = lambda pair: (leaves[pair[0]] == "b") != (leaves[pair[1]] == "b")  # noqa: E731
    pool = Pool(12, crossing, leaves)
    for day in range(6 * 4):
        pool.round()
        pool.now = NOW + day // 6 * WEEKLY
        assert not pool.said().nodes
    told = [why for why in pool.said().links.values() if "look at the switch" in why]
    assert told and all("leaf switch b" in why and "on leaf switch c" not in why for why in told), told


def test_each_node_meets_two_others_in_a_period_and_other_ones_in_the_next() -> None:
    pool = Pool(9, with_bad())
    while pool.round():
        pass
    partners = {
        name: {end for pair in pool.met if name in pair for end in pair} - {name} for name in pool.names
    }
    assert all(len(each) >= PARTNERS for each in partners.values())
    before = set(pool.met)
    pool.now += WEEKLY
    assert not before & set(pool.round()), "pairs that were not measured yet come first"


def test_a_named_node_is_measured_daily_and_cleared_when_it_passes() -> None:
    is_bad = True
    pool = Pool(6, lambda pair: is_bad and "n02" in pair)
    for _ in range(5):
        pool.round()
    assert set(pool.said().nodes) == {"n02"} and not any("n02" in pair for pair in pool.round())
    pool.now, is_bad = pool.now + DAILY, False
    for _ in range(6):
        pool.round()
    assert not pool.said().nodes and not pool.said().links and not pool.said().suspects


def test_few_pairs_run_at_once_and_one_without_a_result_waits() -> None:
    names = [f"n{number:02}" for number in range(100)]
    assert len(choose_pairs(names, 100, 0, [], {}, NOW)) == 2 and not choose_pairs(names, 100, 4, [], {}, NOW)
    assert len(choose_pairs(names[:2], 2, 0, [], {}, NOW)) == 1 and not choose_pairs(
        names[:2], 2, 1, [], {}, NOW
    )
    tried = {("n00", "n01"): Meeting(tried_at=NOW, unfinished=2)}
    assert not choose_pairs(names[:2], 2, 0, [], tried, NOW + RETRY)
    assert choose_pairs(names[:2], 2, 0, [], tried, NOW + 2 * RETRY)


def test_a_pair_far_slower_than_the_others_is_found_and_few_are_not_compared() -> None:
    check = named("pair_bandwidth")
    values = [20.0 + number / 10 for number in range(9)]
    speeds = Speeds.of(check, [*values, 11.0])
    assert "of the median" in speeds.why_slow(11.0)
    assert not any(speeds.why_slow(each) for each in values), "a spread of 4% is normal"
    assert not Speeds.of(check, [0.1, 20.0]).why_slow(0.1)
