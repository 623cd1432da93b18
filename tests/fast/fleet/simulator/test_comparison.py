"""Policies and limits compared by simulated pairs of runs with the same faults."""

from dataclasses import replace

import pytest

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.limits import Limits
from neocloud.fleet.policy.limits_file import CHANGEABLE, is_limits_file, load_limits
from neocloud.fleet.policy.policy import CodeKind, Policy, Severity
from neocloud.fleet.policy.policy_file import PolicyError, default_policy
from neocloud.fleet.simulator.comparison import MEASURES, Comparison, Difference, Setup, compare, difference
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.rates import CAUSES, OUTLIER
from neocloud.fleet.simulator.result import summarize
from neocloud.fleet.simulator.scenario import Scenario

pytestmark = pytest.mark.slow

SCENARIO = Scenario(gpus=256, days=20, rate=20, spares=8)
SHIPPED = Setup("shipped", default_policy(), {})
SEEDS = range(4)


def found_of(found: Comparison) -> dict[str, Difference]:
    return {each.name: each for each in found.differences}


def with_rule(policy: Policy, code: str, severity: Severity, action: Action) -> Policy:
    rules = [
        replace(rule, severity=severity, action=action)
        if code in rule.codes and rule.kind is CodeKind.COUNTER
        else rule
        for rule in policy.rules
    ]
    return replace(policy, rules=rules)


def test_the_same_on_both_sides_differs_in_nothing() -> None:
    found = compare(SCENARIO, SHIPPED, SHIPPED, SEEDS)
    assert {each.verdict for each in found.differences} == {"same"} and not found.is_worse
    assert {each.name for each in found.differences} == {measure.name for measure in MEASURES}


def test_a_policy_that_ignores_lost_gpus_loses_useful_time_with_confidence() -> None:
    careless = replace(
        SHIPPED, policy=with_rule(default_policy(), "gpu_lost", Severity.INFO, Action.NONE), name="careless"
    )
    found = compare(SCENARIO, SHIPPED, careless, SEEDS)
    ettr = found_of(found)["ettr"]
    assert ettr.verdict == "worse" and ettr.low <= ettr.change <= ettr.high < 0
    assert found.is_worse and found.document()["is_worse"] is True
    better = compare(SCENARIO, careless, SHIPPED, SEEDS)
    assert found_of(better)["ettr"].change == pytest.approx(-ettr.change) and not better.is_worse


def test_limits_that_keep_broken_nodes_in_the_job_show() -> None:
    strict = replace(SHIPPED, limits={"smallest_cluster_limit": 0, "cluster_drains": 0.0, "cluster_out": 0.0})
    ettr = found_of(compare(SCENARIO, SHIPPED, strict, SEEDS))["ettr"]
    assert ettr.verdict == "worse" and ettr.after < 0.5, "nothing may be drained"


def test_faults_do_not_depend_on_what_is_decided_about_them() -> None:
    """Pairs of runs are only pairs if the same faults come at the same times."""
    quiet = replace(SCENARIO, outlier_false_positives=0, false_positives=0, rate=5, verify_recall=1)
    trusted = replace(quiet.limits, cool_down=1.0, cluster_drains=0.5, cluster_out=0.9)
    counts: list[object] = []
    for limits in (quiet.limits, trusted):
        simulation = Simulation(replace(quiet, limits=limits, step_failure=0.5 if limits is trusted else 0))
        simulation.run()
        counts.append(simulation.faults.faults)
    assert counts[0] == counts[1] and counts[0]


def test_pairs_vary_less_than_runs() -> None:
    """Common seeds make the interval of the difference narrower than that of separate runs."""
    other = replace(SHIPPED, limits={"cool_down": 60.0})
    runs = []
    for seed in SEEDS:
        simulation = Simulation(replace(SCENARIO, seed=seed, policy=default_policy()))
        simulation.run()
        runs.append(summarize(simulation).ettr)
    ettr = found_of(compare(SCENARIO, SHIPPED, other, SEEDS))["ettr"]
    assert ettr.high - ettr.low < max(runs) - min(runs)


def test_a_measure_that_a_run_does_not_have_is_left_out_of_its_pair() -> None:
    simulation = Simulation(replace(SCENARIO, days=1))
    simulation.run()
    result = replace(summarize(simulation), recovery_seconds=100.0)
    measure = next(each for each in MEASURES if each.name == "recovery_seconds")
    pairs = [(result, replace(result, recovery_seconds=110.0 + n)) for n in range(3)]
    found = difference(measure, [*pairs, (result, replace(result, recovery_seconds=None))])
    assert found is not None and found.pairs == 3 and found.change == pytest.approx(11.0)
    assert (found.low, found.high) == (pytest.approx(11 - 4.303 / 3**0.5), pytest.approx(11 + 4.303 / 3**0.5))
    assert found.verdict == "worse", "the interval is 8.5 to 13.5 s"
    assert difference(measure, pairs[:2]) is None


def test_every_fault_that_a_cause_stands_for_has_a_row() -> None:
    """Else a comparison would send its nodes to triage as unknown."""
    named = [cause.in_policy for cause in CAUSES if cause.in_policy is not None]
    assert len(named) >= 8
    for kind, code in named:
        assert not default_policy().response_to(kind, code, gpu="h100").unknown
    assert OUTLIER not in {code for _, code in named}


def test_limits_are_read_with_times_and_whole_numbers() -> None:
    text = "limits:\n  cool_down: 2h\n  cluster_drains: 0.1\n  canaries: 3\n  rack_tolerates: 2\n"
    changes = load_limits(text, "l.yaml")
    assert changes == {"cool_down": 7200.0, "cluster_drains": 0.1, "canaries": 3, "rack_tolerates": 2}
    assert replace(Limits(), **changes).canaries == 3  # type: ignore[arg-type]
    assert is_limits_file(text) and not is_limits_file("version: 1\n")
    assert "trusted" not in CHANGEABLE and "per_rung" not in CHANGEABLE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("limits:\n  cooldown: 2h\n", "line 2: 'cooldown' is not a limit"),
        ("limits:\n  trusted: [a]\n", "line 2: 'trusted' is not a limit"),
        ("limits:\n  cool_down: soon\n", "line 2: cool_down is a number"),
        ("limits:\n  cool_down: -1\n", "line 2: cool_down is from 0"),
        ("limits:\n  cool_down: .nan\n", "line 2"),
        ("limits:\n  cool_down: 1e400\n", "line 2"),
        ("limits:\n  canaries: 1.5\n", "whole number"),
        ("limits:\n  canaries: 1\n  canaries: 2\n", "line 3: canaries is there twice"),
        ("limits: 3\n", "line 1: names with values"),
        ("limits: {}\nmore: 1\n", '"limits" and nothing else'),
        ("limits: [\n", "line"),
        ("", "line 1"),
        ("limits:\n  [1]: 2\n", "a name belongs here"),
        ("limits: " + "x" * 70_000, "more than"),
        ("limits:\n  ? {a: b}\n  : 1\n", "a name belongs here"),
    ],
)
def test_a_wrong_limits_file_is_refused_with_line_and_reason(text: str, reason: str) -> None:
    with pytest.raises(PolicyError, match=r"^l\.yaml, line \d+: ") as refused:
        load_limits(text, "l.yaml")
    assert reason in str(refused.value)
