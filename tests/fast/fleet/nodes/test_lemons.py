"""Nodes that fail again and again: the rate of a node against that of its fleet. HEALTH-05."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Phase
from neocloud.fleet.nodes.lemons import LemonRecord, Lemons, exceeds, fleet_rate
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.limits import DAY, Limits
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.result import summarize
from neocloud.fleet.simulator.scenario import Scenario
from tests.fast.fleet.control.test_controller import ROOMY, Site

pytestmark = pytest.mark.slow

NOW = 30 * DAY


def poisson(source: random.Random, mean: float) -> int:
    count, left = 0, source.expovariate(1)
    while left < mean:
        count, left = count + 1, left + source.expovariate(1)
    return count


def lemons(failures: Mapping[str, int], limits: Limits | None = None) -> Lemons:
    found = Lemons(limits or Limits())
    found.records = {node: LemonRecord(0.0, count) for node, count in failures.items()}
    return found


@pytest.mark.parametrize(("shape", "limit"), [(3, 2.0), (4, 3.3), (6, 3.3), (7, 12.0), (30, 31.0)])
def test_the_probability_is_that_of_the_gamma_distribution(shape: int, limit: float) -> None:
    """The tail of a whole shape is a sum over Poisson probabilities."""
    exact = math.exp(-limit) * math.fsum(limit**k / math.factorial(k) for k in range(shape))
    assert exceeds(shape, 1.0, limit) == pytest.approx(exact, abs=0.005)
    assert exceeds(shape, 2.0, limit / 2) == pytest.approx(exact, abs=0.005), "the rate is a scale"


def test_mean_and_spread_of_the_fleet_are_found() -> None:
    source = random.Random(7)
    rates = [source.gammavariate(0.5, 0.4) for _ in range(20_000)]
    records = [LemonRecord(0.0, poisson(source, rate * 30)) for rate in rates]
    mean, shape = fleet_rate(records, NOW)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert shape == pytest.approx(0.5, rel=0.1)


def test_where_all_fail_alike_nobody_is_a_lemon() -> None:
    found = lemons({f"n{number}": 3 + number % 2 for number in range(100)})
    assert fleet_rate(found.records.values(), NOW)[1] == math.inf
    assert not any(found.reason(node, NOW) for node in found.records)


def test_in_fleets_without_lemons_few_are_called_so() -> None:
    """2,000 nodes that fail at random at one rate, 0.6 failures each: one of those with three or more."""
    source = random.Random(3)
    found = lemons({f"n{number}": poisson(source, 0.6) for number in range(2000)})
    assert sum(record.failures >= 3 for record in found.records.values()) > 20
    assert sum(bool(found.reason(node, NOW)) for node in found.records) <= 1


def test_who_fails_far_more_often_than_the_others_is_a_lemon_and_the_reason_says_how_far() -> None:
    failures = {f"n{number}": int(number % 5 == 0) for number in range(100)} | {"n1": 6, "n2": 2}
    found = lemons(failures)
    assert found.reason("n1", NOW).startswith(
        "lemon: failed 6 times in 30.0 days, where the fleet's rate expects 0.3"
    )
    assert not found.reason("n2", NOW), "below the smallest number of failures"
    assert not found.reason("nobody", NOW)
    assert not lemons(failures, replace(Limits(), lemon_probability=1.1)).reason("n1", NOW), "turned off"


def test_what_was_refuted_what_others_drained_and_what_new_parts_ended_does_not_count() -> None:
    found, node = Lemons(Limits()), NodeState("n1")
    found.observe(e.Registered(0.0, "n1", "r", "l"), node)
    found.observe(e.DrainRequested(1.0, "n1", OURS, "v1", "gpu"), node)
    found.observe(e.DrainRequested(2.0, "n1", "operator", "ticket", "gpu"), node)
    found.observe(e.DrainRequested(2.0, "n1", OURS, "rack:r"), node)
    assert found.records["n1"] == LemonRecord(0.0, 1)
    found.observe(e.Judged(3.0, "n1", "gpu", "v1", is_confirmed=False), node)
    assert found.records["n1"].failures == 0
    found.observe(e.DrainRequested(4.0, "n1", OURS, "v2", "gpu"), node)
    found.observe(e.Moved(5.0, "n1", Phase.RMA_RETURNED, "operator"), node)
    assert found.records["n1"] == LemonRecord(5.0, 0)


def test_a_lemon_goes_to_people_instead_of_through_another_reset() -> None:
    site = Site(ROOMY)
    for _ in range(4):
        site.fail(3)
        site.decide(1)
        site.repair("n3", is_good=True)
        site.add(e.SpareReserved(site.now, "n3"))
        site.add(e.Attached(site.now, "n3"))
        site.decide(DAY)
        if site.fleet.nodes["n3"].phase is Phase.TRIAGE:
            break
    else:
        site.fail(3)
        site.decide(1)
        site.add(e.Drained(site.now, "n3"))
        (decision,) = site.decide(1).decisions
        assert isinstance(decision.event, e.Moved) and decision.why.startswith("lemon: failed 5 times")
    assert site.fleet.nodes["n3"].phase is Phase.TRIAGE


def test_the_simulated_controller_finds_lemons_and_few_others() -> None:
    scenario = Scenario(gpus=4096, days=120, lemon_nodes=0.05, spares=30)
    found = summarize(simulated(scenario))
    off = replace(scenario, limits=replace(scenario.limits, lemon_probability=1.1))
    assert summarize(simulated(off)).lemons_sent_to_triage == 0
    assert found.lemons_sent_to_triage >= 5
    assert found.lemons_among_them / found.lemons_sent_to_triage > 0.8


def simulated(scenario: Scenario) -> Simulation:
    simulation = Simulation(scenario)
    simulation.run()
    return simulation
