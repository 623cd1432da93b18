"""The order of tests of nodes, and comparisons within cohorts; on data whose truth is known."""

import random
from dataclasses import replace

import pytest

from neocloud.fleet.active.catalogue import catalogue, named
from neocloud.fleet.active.cohort import (
    FLOOR,
    OTHERS_SHARE,
    SMALLEST,
    Centre,
    compare,
    most_weight,
)
from neocloud.fleet.active.schedule import (
    DAILY,
    PROMISE,
    RETRY,
    WEEKLY,
    CheckHistory,
    choose,
    due_checks,
    is_covered,
    next_at,
    oldest_answer,
)
from neocloud.fleet.policy.limits import DAY, HOUR

GEMM = named("gpu_gemm")
RUNNABLE = [each.name for each in catalogue() if each.program not in ("", "pair")]
NOW = 100 * DAY


def all_at(at: float) -> dict[str, float]:
    return dict.fromkeys(RUNNABLE, at)


def test_a_slow_node_above_every_limit_is_found_and_normal_spread_is_not() -> None:
    """20% below 750 is 600, above the floor of 595; the spread of the others is 2%."""
    seed = random.Random(7)
    runs = {f"n{number}": [seed.gauss(750, 15) for _ in range(3)] for number in range(40)}
    runs["slow"] = [600, 602, 598]
    found = compare(GEMM, runs)
    assert [name for name, each in found.members.items() if each.is_fault] == ["slow"]
    limit = GEMM.limit("H100")
    assert limit is not None and not found.incident and GEMM.is_within(600, limit)


def test_equal_values_have_a_least_deviation() -> None:
    """Without a floor, 0.1% below a cohort of equal values would be infinitely far away."""
    runs = {f"n{number}": [700.0] * 3 for number in range(20)} | {"near": [699.0] * 3}
    assert not compare(GEMM, runs).members["near"].is_fault
    assert abs(Centre.of([(700.0, 1.0)] * 9).distance(GEMM, 700 * (1 - FLOOR)).z + 1 / 1.4826) < 1e-6


def test_far_in_deviations_but_within_the_margin_is_no_fault() -> None:
    runs = {f"n{number}": [700.0 + number * 0.1] * 3 for number in range(20)} | {"x": [660.0] * 3}
    found = compare(GEMM, runs).members["x"]
    assert found.distance.z < -4 and found.distance.deficit < GEMM.margin and not found.is_fault


def test_one_run_of_three_asks_for_a_repeat_and_a_recovered_node_is_well() -> None:
    runs = {f"n{number}": [700.0 + number] * 3 for number in range(20)}
    once = compare(GEMM, runs | {"x": [700.0, 700.0, 500.0]}).members["x"]
    assert once.wants_repeat and not once.is_fault
    assert compare(GEMM, runs | {"x": [500.0, 700.0, 500.0]}).members["x"].is_fault
    well = compare(GEMM, runs | {"x": [500.0, 500.0, 700.0]}).members["x"]
    assert not well.is_fault and not well.wants_repeat


def test_many_outliers_blame_nobody() -> None:
    runs = {f"n{number}": [700.0] * 3 for number in range(20)} | {f"x{n}": [500.0] * 3 for n in range(4)}
    found = compare(GEMM, runs)
    assert "4 of 24" in found.incident and not any(each.is_fault for each in found.members.values())


def test_a_small_cohort_and_exact_checks_are_not_compared() -> None:
    runs = {f"n{number}": [700.0] * 3 for number in range(SMALLEST - 2)} | {"x": [1.0] * 3}
    assert not compare(GEMM, runs).members
    exact = {f"n{number}": [0.0] * 3 for number in range(20)} | {"x": [9.0] * 3}
    assert not compare(named("cpu_sdc"), exact).members


def honest(seed: int, nodes: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(750, 10) for _ in range(nodes)]


def test_a_pool_of_two_is_compared_with_its_like_at_other_tenants() -> None:
    others = [honest(number, 6) for number in range(5)]
    assert not compare(GEMM, {"a": [750.0] * 3, "slow": [600.0] * 3}).members
    found = compare(GEMM, {"a": [750.0] * 3, "slow": [600.0] * 3}, others=others)
    assert found.members["slow"].is_fault and not found.members["a"].is_fault


@pytest.mark.parametrize("lie", [1.0, 640.0, 700.0, 800.0, 1e18])
def test_a_hostile_tenant_shields_nobody_and_gets_nobody_blamed(lie: float) -> None:
    """Its root sends the same false value from a thousand nodes."""
    honest_pools = [honest(number, 5) for number in range(4)]
    own = {f"n{number}": [value] * 3 for number, value in enumerate(honest(9, 6))} | {"slow": [600.0] * 3}
    found = compare(GEMM, own, others=[*honest_pools, [lie] * 1000])
    assert [name for name, each in found.members.items() if each.is_fault] == ["slow"], found


def test_two_tenants_alone_are_not_compared_where_one_could_decide() -> None:
    """Nine of ten nodes would belong to the other tenant: they count a third of a node."""
    assert not compare(GEMM, {"a": [750.0] * 3}, others=[[900.0] * 9]).members


@pytest.mark.parametrize("seed", range(50))
def test_no_other_tenant_has_more_than_its_share(seed: int) -> None:
    chance = random.Random(seed)
    own, others = chance.randint(1, 30), [chance.randint(1, 200) for _ in range(chance.randint(1, 9))]
    most = most_weight(own, others)
    weights = [min(float(each), most) for each in others]
    assert max(weights) <= OTHERS_SHARE * (own + sum(weights)) + 1e-9
    assert most == max(others) or max(weights) >= OTHERS_SHARE * (own + sum(weights)) - 1e-9, "and no less"


def test_for_times_more_is_worse() -> None:
    torch = named("import_torch")
    runs = {f"n{number}": [2.0] * 3 for number in range(10)} | {"slow": [9.0] * 3, "fast": [0.5] * 3}
    found = compare(torch, runs | {f"m{number}": [2.0] * 3 for number in range(20)}).members
    assert found["slow"].is_fault and not found["fast"].is_fault


def test_a_busy_node_is_not_chosen_and_a_new_one_gets_every_check() -> None:
    (chosen,) = choose([CheckHistory("busy", is_idle=False), CheckHistory("new")], 0, NOW)
    assert chosen.node == "new" and chosen.checks == tuple(RUNNABLE) and chosen.why == "weekly"


def test_a_run_cut_short_goes_on_with_what_is_left_and_not_at_once() -> None:
    done = all_at(NOW) | {"import_torch": 0.0}
    node = CheckHistory("n", answered=done, tried_at=NOW, unfinished=1)
    assert not choose([node], 0, NOW + RETRY - 1)
    (chosen,) = choose([node], 0, NOW + RETRY)
    assert chosen.checks == ("import_torch",)
    stubborn = replace(node, unfinished=99)
    assert next_at(stubborn) == NOW + 32 * RETRY


def test_quick_checks_are_due_daily_and_all_weekly() -> None:
    node = CheckHistory("n", answered=all_at(NOW))
    assert not due_checks(node, NOW + DAILY - 1) and next_at(node) == NOW + DAILY
    daily = {each.name for each in due_checks(node, NOW + DAILY)}
    assert "cpu_sdc" in daily and "gpu_gemm" not in daily
    assert len(due_checks(node, NOW + WEEKLY)) == len(RUNNABLE)


def test_overdue_nodes_come_first_then_those_that_fail_most() -> None:
    fresh = all_at(NOW - 2 * DAY)
    nodes = [CheckHistory(f"n{number}", answered=fresh, days=30) for number in range(58)]
    nodes += [CheckHistory("lemon", answered=fresh, failures=6, days=30)]
    nodes += [CheckHistory("late", answered=all_at(NOW - 6.5 * DAY), days=30)]
    assert [each.node for each in choose(nodes, 0, NOW)][:2] == ["late", "lemon"]


def test_few_nodes_are_tested_at_once() -> None:
    nodes = [CheckHistory(f"n{number}") for number in range(100)]
    assert len(choose(nodes, 0, NOW)) == 5 and len(choose(nodes, 4, NOW)) == 1 and not choose(nodes, 5, NOW)
    assert len(choose(nodes[:3], 0, NOW)) == 1


def test_an_outlier_is_repeated_soon() -> None:
    node = CheckHistory("n", answered=all_at(NOW), tried_at=NOW, repeats=frozenset({"gpu_gemm"}))
    assert not choose([node], 0, NOW + RETRY - 1)
    (chosen,) = choose([node], 0, NOW + RETRY)
    assert chosen.checks == ("gpu_gemm",) and chosen.why == "repeat"


def test_coverage_counts_nodes_whose_every_check_has_a_recent_answer() -> None:
    assert not is_covered(CheckHistory("n"), NOW)
    assert oldest_answer(CheckHistory("n", answered=all_at(NOW) | {"metadata": NOW - DAY})) == NOW - DAY
    partly = all_at(NOW)
    del partly["gpu_sdc"]
    assert not is_covered(CheckHistory("n", answered=partly), NOW)
    assert is_covered(CheckHistory("n", answered=all_at(NOW - PROMISE)), NOW)
    assert not is_covered(CheckHistory("n", answered=all_at(NOW - PROMISE - 1)), NOW)


def test_a_fleet_that_is_idle_half_of_the_time_is_covered_within_the_promise() -> None:
    """A month of 60 nodes, each test takes ten minutes; which nodes are idle changes at random."""
    seed = random.Random(3)
    answered: dict[str, dict[str, float]] = {f"n{number}": {} for number in range(60)}
    uncovered = 0
    for step in range(int(30 * DAY / (10 * 60))):
        now = NOW + step * 600
        nodes = [CheckHistory(name, seed.random() < 0.5, known) for name, known in answered.items()]
        for chosen in choose(nodes, 0, now):
            answered[chosen.node] = answered[chosen.node] | dict.fromkeys(chosen.checks, now)
        if step > 7 * DAY / 600:
            uncovered += sum(
                not is_covered(CheckHistory(name, True, known), now) for name, known in answered.items()
            )
    assert uncovered == 0 and HOUR < PROMISE
