"""The simulator: its counts against the published ones, its time against closed forms."""

import math
from dataclasses import replace

import pytest

from neocloud.fleet.control.controller import Fleet
from neocloud.fleet.policy.limits import DAY, HOUR
from neocloud.fleet.simulator import checkpoints
from neocloud.fleet.simulator.checkpoints import JobRun
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.rates import CAUSES, OUTLIER
from neocloud.fleet.simulator.result import Result, summarize
from neocloud.fleet.simulator.scenario import Scenario

pytestmark = pytest.mark.slow

PUBLISHED = 419
PLAIN = Scenario(
    maintenance=0,
    recall=1,
    verify_recall=1,
    false_positives=0,
    outlier_false_positives=0,
    leaf_share=0,
    spares=200,
)
"""Faults alone, with a recovery of nearly the same time for each: what the closed forms are about."""


def result_of(scenario: Scenario) -> Result:
    simulation = Simulation(scenario)
    simulation.run()
    return summarize(simulation)


@pytest.fixture(scope="module")
def plain() -> Result:
    return result_of(PLAIN)


def test_the_causes_are_the_published_ones() -> None:
    assert sum(cause.count for cause in CAUSES) == PUBLISHED
    for cause in CAUSES:
        assert cause.cured_by is None or math.isclose(sum(cause.cured_by.values()), 1)
        assert bool(cause.check) is (cause.cured_by is not None)


def test_the_number_of_interruptions_is_that_of_the_published_run(plain: Result) -> None:
    bound = 3 * math.sqrt(PUBLISHED)
    assert abs(sum(plain.by_cause.values()) - PUBLISHED) < bound
    assert plain.interruptions == sum(plain.by_cause.values()), "nothing came back"
    assert abs(plain.by_cause["faulty GPU"] - 148) < 3 * math.sqrt(148)


def test_the_useful_time_is_that_of_the_closed_form(plain: Result) -> None:
    assert plain.ettr_closed_form is not None and plain.ettr_first_order is not None
    assert plain.ettr == pytest.approx(plain.ettr_closed_form, rel=0.01)
    assert plain.ettr == pytest.approx(plain.ettr_first_order, rel=0.03), "it holds for rare interruptions"
    assert plain.recovery_seconds == pytest.approx(180, abs=20), "10 s, 5 s, 60 s and 120 s; or no node"


def test_the_best_interval_in_these_runs_is_near_the_computed_one(plain: Result) -> None:
    assert plain.daly_interval is not None
    assert 0.5 < plain.best_interval / plain.daly_interval < 2
    assert plain.best_ettr >= plain.ettr


def test_spares_are_those_of_the_poisson_rule(plain: Result) -> None:
    assert plain.waiting_for_spares == 0
    assert abs(plain.spares_needed_p99 - plain.spares_by_rule) < 10


SMALL = Scenario(gpus=512, days=20, rate=40, spares=16, lemon_nodes=0.05, rack_faults_per_year=50)
"""Everything that can go wrong, often."""


def test_the_same_seed_gives_the_same_run_and_the_log_the_same_fleet() -> None:
    simulation = Simulation(SMALL, keeps_log=True)
    simulation.run()
    assert summarize(simulation) == result_of(SMALL) != result_of(replace(SMALL, seed=2))
    assert simulation.log is not None
    again = Fleet.replay(SMALL.limits, SMALL.job_nodes, simulation.log)
    assert again.nodes == simulation.fleet.nodes
    assert again.breakers.trips == simulation.fleet.breakers.trips
    faults = simulation.faults
    assert again.lemons.records == simulation.fleet.lemons.records
    assert faults.by_cause["rack power"] and faults.lemons


def test_a_fleet_without_spares_waits_for_the_repair() -> None:
    found = result_of(replace(PLAIN, gpus=512, days=30, spares=0))
    assert found.waiting_for_spares > DAY
    assert found.ettr < 0.9, "to the end of the simulation, too"


def test_a_detector_without_precision_costs_nothing_in_shadow_and_is_found_out_when_trusted() -> None:
    quiet = replace(PLAIN, gpus=512, days=30, rate=0.01, outlier_false_positives=0.1)
    assert result_of(quiet).false_drains == 0
    trusted = replace(quiet, limits=replace(quiet.limits, trusted=quiet.limits.trusted | {OUTLIER}))
    drained = result_of(trusted)
    assert 20 <= drained.false_drains < 30, "20 verdicts are judged until it is in shadow"
    assert drained.false_drain_loss > 0


def test_faster_recovery_and_saving_are_worth_what_they_are_in_the_closed_form() -> None:
    slow = result_of(replace(PLAIN, days=20, restart=600))
    fast = result_of(replace(PLAIN, days=20, restart=60, save=10))
    assert fast.ettr > slow.ettr + 0.05


def test_kept_work_is_counted_by_whole_intervals() -> None:
    runs = [JobRun(1000, is_graceful=False), JobRun(250, is_graceful=True), JobRun(90, is_graceful=False)]
    assert checkpoints.useful_seconds(runs, interval=100, save=10) == 900 + 220 + 0
    assert checkpoints.young(60, DAY) == pytest.approx(3220, abs=1)
    assert checkpoints.daly(60, DAY) == pytest.approx(3180, abs=1)
    assert checkpoints.first_order_ettr(4620, 60, 49.5 * HOUR, 600) == pytest.approx(0.971, abs=0.001)
