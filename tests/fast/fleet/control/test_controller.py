"""The controller: promises kept on random walks, breakers, correlation, spares. HEALTH-05."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from neocloud.fleet.control.breakers import Breakers, Trip
from neocloud.fleet.control.controller import Fleet, FleetPlan, decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, CheckScope, Phase, Status
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import DAY, HOUR, MINUTE, Limits
from tests.fast.fleet.control.walk import Walk
from tests.iterations import iterations

LIMITS = Limits(trusted=frozenset({"gpu", "link", "mount"}))
ROOMY = replace(LIMITS, cluster_drains=0.5, rack_drains=99, leaf_drains=99, check_minimum=99)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_keeps_every_promise(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    walk.check_replay()
    assert walk.drained_ever > 10, "it drained nodes"
    assert walk.served_steps > 1500, "nodes were in service"
    assert any(isinstance(event, e.StepStarted) for event in walk.log)


@pytest.mark.timeout(1200)  # 11 seconds of a processor that is shared at times
@pytest.mark.repeated
def test_a_walk_of_a_hundred_thousand_steps_keeps_every_promise() -> None:
    """A million steps: tests/long/fleet/control/test_long_walk.py."""
    walk, steps = Walk(7), iterations(100_000)
    for _ in range(steps):
        walk.step()
    walk.check_replay()
    assert walk.drained_ever > steps / 200 and walk.served_steps > steps


class Site:
    """A fleet of 40 nodes in service, 4 to a rack and 8 to a leaf switch, and spares."""

    def __init__(self, limits: Limits = LIMITS, spares: int = 0) -> None:
        self.fleet, self.now = Fleet(limits, 40), 1000.0
        for number in range(40 + spares):
            name = f"n{number}"
            self.add(e.Registered(0, name, f"r{number // 4}", f"l{number // 8}", Phase.DRAINED))
            self.add(e.Booted(1, name, "b"))
            self.add(e.VerificationStarted(2, name, Suite.FULL, 1, 99))
            self.add(e.VerificationEnded(3, name, 1, passed=True, valid_until=7 * DAY))
            if number < 40:
                self.add(e.SpareReserved(4, name))
                self.add(e.Attached(5, name))
                self.add(e.Returned(6, name))
                self.add(e.Assigned(7, name, "tenant", f"j{number % 20}"))

    def add(self, event: e.Event) -> None:
        self.fleet.apply(event)

    def fail(
        self,
        *numbers: int,
        check: str = "gpu",
        status: Status = Status.FAIL,
        scope: CheckScope = CheckScope.NODE,
        fatal: bool = True,
    ) -> None:
        for number in numbers:
            text = f"v{number}-{self.now}"
            sample = ("s", "t", "test", "1", Action.RESET_GPU, scope, fatal)
            self.add(e.Verdict(self.now, f"n{number}", text, check, status, "b", *sample))

    def decide(self, seconds: float = 0.0) -> FleetPlan:
        """Decide after a time, and take the decisions."""
        self.now += seconds
        plan = decide(self.fleet, self.now)
        for decision in plan.decisions:
            self.add(decision.event)
        return plan

    def repair(self, node: str, *, is_good: bool) -> None:
        """Take a node that is draining through reset and verification."""
        self.add(e.Drained(self.now, node))
        self.decide(1)
        self.add(e.StepEnded(self.now, node, self.fleet.nodes[node].attempts, True))
        self.decide(1)
        attempt = self.fleet.nodes[node].attempts
        self.add(e.VerificationEnded(self.now + 1, node, attempt, is_good, self.now + 7 * DAY))
        self.decide(2)


def drains(plan: FleetPlan) -> Sequence[str]:
    return [each.event.node for each in plan.decisions if isinstance(each.event, e.DrainRequested)]


def test_a_fault_is_drained_repaired_verified_and_replaced() -> None:
    site = Site(spares=2)
    site.fail(3)
    plan = site.decide(1)
    assert drains(plan) == ["n3"] and site.fleet.nodes["n3"].holds[0].evidence == "v3-1000.0"
    reserved = [each.event for each in plan.decisions if isinstance(each.event, e.SpareReserved)]
    assert [(each.node, each.replaces) for each in reserved] == [("n40", "n3")]
    assert not site.decide(1).decisions
    site.add(e.Attached(site.now, "n40"))
    assert [type(each.event) for each in site.decide(1).decisions] == [e.Returned]
    site.repair("n3", is_good=True)
    assert site.fleet.nodes["n3"].phase is Phase.READY_SPARE
    assert site.fleet.nodes["n3"].history[0][0] is Action.RESET_GPU


def test_the_cluster_breaker_stops_drains_and_a_canary_closes_it() -> None:
    site = Site()
    site.fail(0, 9, 17, 25)
    plan = site.decide()
    assert len(drains(plan)) == 2, "5% of 40"
    assert set(plan.held.values()) == {"breaker cluster: open"}
    assert not drains(site.decide(29 * MINUTE))
    site.repair("n0", is_good=True)
    plan = site.decide(2 * MINUTE)
    assert drains(plan) == ["n17"]
    assert plan.held == {"n25": "breaker cluster: waits for its canary"}
    site.repair("n17", is_good=False)
    assert site.decide().held["n25"] == "breaker cluster: open", "the canary failed"
    assert drains(site.decide(31 * MINUTE)) == ["n25"]
    site.repair("n25", is_good=True)
    assert not site.fleet.breakers.trips


WITH_DEAD = replace(LIMITS, dead_checks=frozenset({"gpu"}), dead_replacements=2)


def test_dead_nodes_are_replaced_while_a_breaker_is_open_and_their_repairs_wait_for_it() -> None:
    site = Site(replace(WITH_DEAD, check_minimum=99), spares=4)
    site.fail(0, 9)
    assert drains(site.decide()) == ["n0", "n9"], "5% of 44: the breaker is open now"
    site.fail(17, 25)
    plan = site.decide()
    assert drains(plan) == ["n17", "n25"]
    reserved = [each.event for each in plan.decisions if isinstance(each.event, e.SpareReserved)]
    assert {each.replaces for each in reserved} == {"n17", "n25"}
    site.fail(33)
    assert site.decide().held == {"n33": "breaker cluster: open"}, "two in the window, and no spare is left"
    for node in ("n0", "n17"):
        site.add(e.Drained(site.now, node))
    plan = site.decide(1)
    steps = [each.event.node for each in plan.decisions if isinstance(each.event, e.StepStarted)]
    assert steps == ["n0"] and plan.held["n17"] == "breaker cluster: open"
    plan = site.decide(31 * MINUTE)
    assert drains(plan) == ["n33"], "a canary of the breaker, of which the dead are none"
    assert plan.held["n17"] == "breaker cluster: waits for its canary"
    site.repair("n33", is_good=True)
    assert site.fleet.nodes["n17"].phase is Phase.REMEDIATING


@pytest.mark.parametrize(
    ("limits", "spares", "fatal", "check"),
    [
        (LIMITS, 4, True, "gpu"),
        (WITH_DEAD, 2, True, "gpu"),
        (WITH_DEAD, 4, False, "gpu"),
        (WITH_DEAD, 4, True, "link"),
    ],
    ids=["not allowed", "no spare is left", "it may still run its job", "a check that does not say dead"],
)
def test_no_other_node_is_drained_past_an_open_breaker(
    limits: Limits, spares: int, fatal: bool, check: str
) -> None:
    site = Site(limits, spares)
    site.fail(0, 9)
    site.decide()
    site.fail(17, check=check, fatal=fatal)
    assert site.decide().held == {"n17": "breaker cluster: open"}


def test_a_node_that_restarts_by_itself_runs_nothing_and_is_replaced_too() -> None:
    site = Site(WITH_DEAD, spares=3)
    for node in ("n0", "n9", "n17"):
        site.add(e.Booted(site.now, node, "b2"))
    assert drains(site.decide()) == ["n0", "n9", "n17"]
    assert site.fleet.phases[Phase.READY_SPARE] == site.fleet.reserved == 3


def test_dead_nodes_do_not_pass_the_breaker_of_their_check() -> None:
    site = Site(replace(WITH_DEAD, check_minimum=3, cluster_drains=0.5), spares=4)
    site.fail(0, 9, 17)
    assert set(site.decide().held.values()) == {"breaker check gpu: open"}


def test_a_check_that_fails_everywhere_is_tripped_and_what_it_said_is_judged() -> None:
    site = Site(replace(ROOMY, check_minimum=3))
    site.fail(0, 9, 17, check="gpu")
    assert not drains(site.decide())
    assert set(site.decide().held.values()) == {"breaker check gpu: open"}
    assert drains(site.decide(31 * MINUTE)) == ["n0"]
    site.add(e.Judged(site.now, "n0", "gpu", "v", is_confirmed=True))
    assert drains(site.decide()) == ["n9", "n17"]


def test_a_check_that_fails_as_often_as_usual_is_not_tripped() -> None:
    site = Site(replace(ROOMY, check_minimum=3))
    for hour in range(60):
        site.now += HOUR / 2
        site.fail(hour % 40, status=Status.UNKNOWN)
        site.fail((hour + 7) % 40, status=Status.UNKNOWN)
    site.fleet.breakers.trips.clear()
    site.now += 2 * HOUR
    site.fail(1, 2, 3)
    assert not site.fleet.breakers.trips, "120 faults in 7 days are 0.71 an hour; three are 4.2 times that"
    site.fail(4)
    assert ("check", "gpu") in site.fleet.breakers.trips


def test_a_check_without_a_record_and_one_with_a_bad_one_take_no_node() -> None:
    site = Site(replace(LIMITS, judged_minimum=2))
    site.fail(0, check="new")
    assert not site.decide().decisions and site.fleet.nodes["n0"].phase is Phase.IN_SERVICE
    for number, is_right in enumerate((True, True, False, False, False)):
        site.add(e.Judged(site.now + number, f"n{number}", "gpu", "v", is_right))
        site.add(e.Judged(site.now + number, f"n{number}", "new", "v", not is_right))
    site.fail(1, check="new")
    site.fail(2, check="gpu")
    assert drains(site.decide()) == ["n1"], "right in 3 of 5; the trusted check in 2 of 5"


@pytest.mark.parametrize(
    ("check", "scope", "numbers", "to_blame"),
    [
        ("link", CheckScope.LINK, (0, 1, 2), "switch l0"),
        ("mount", CheckScope.STORAGE, (0, 9, 17, 25, 33), "storage"),
    ],
)
def test_many_nodes_that_share_something_are_not_to_blame(
    check: str, scope: CheckScope, numbers: tuple[int, ...], to_blame: str
) -> None:
    site = Site(ROOMY)
    site.fail(*numbers, check=check, scope=scope)
    site.decide()
    plan = site.decide(6)
    assert not plan.decisions and len(plan.held) == len(numbers)
    assert all(to_blame in why for why in plan.held.values())
    site.fail(numbers[0], check=check, scope=scope, status=Status.PASS)
    expected = list(f"n{number}" for number in numbers[1:])
    assert drains(site.decide(6)) == expected, "few enough to be faults of their own"


def test_one_job_loses_one_node_at_a_time_unless_it_is_dead_already() -> None:
    site = Site(ROOMY)
    site.fail(0, 20, fatal=False)
    plan = site.decide()
    assert drains(plan) == ["n0"] and "job j0" in plan.held["n20"]
    site.fail(1, 21, fatal=True)
    assert drains(site.decide(1)) == ["n1", "n21"]


def test_steps_that_fail_in_a_row_stop_that_step() -> None:
    site = Site(replace(ROOMY, action_failures=2))
    site.fail(0, 9, 17)
    site.decide()
    for node in ("n0", "n9"):
        site.add(e.Drained(site.now, node))
        site.decide(1)
        site.add(e.StepEnded(site.now, node, 2, succeeded=False))
    site.add(e.Drained(site.now, "n17"))
    assert site.decide(1).held == {"n17": "breaker action reset_gpu: open"}
    assert isinstance(site.decide(31 * MINUTE).decisions[-1].event, e.StepStarted), "a canary"


def test_a_step_that_works_again_ends_the_row_of_failures() -> None:
    site = Site(replace(ROOMY, action_failures=2))
    site.fail(0, 9, 17)
    site.decide()
    for node, succeeded in (("n0", False), ("n9", True), ("n17", False)):
        site.add(e.Drained(site.now, node))
        site.decide(1)
        site.add(e.StepEnded(site.now, node, 2, succeeded))
    assert not site.fleet.breakers.trips


def test_a_check_that_gives_no_answer_has_some_time() -> None:
    site = Site()
    site.fail(0, status=Status.UNKNOWN)
    assert not site.decide(4 * MINUTE).decisions and not site.fleet.nodes["n0"].is_schedulable(site.now)
    assert drains(site.decide(2 * MINUTE)) == ["n0"]


def test_idle_nodes_renew_their_certificates_a_few_at_a_time() -> None:
    site = Site()
    for number in range(20):
        site.add(e.Unassigned(site.now, f"n{number}", f"j{number % 20}"))
    assert not site.decide(1).decisions
    plan = site.decide(5.5 * DAY)
    assert [type(each.event) for each in plan.decisions] == [e.VerificationStarted] * 8, "20% of 40"
    assert set(plan.held) == {f"n{number}" for number in range(8, 20)}


def test_a_step_that_never_ends_has_failed_at_its_deadline() -> None:
    site = Site()
    site.fail(0)
    site.decide()
    site.add(e.Drained(site.now, "n0"))
    site.decide(1)
    assert not site.decide(14 * MINUTE).decisions
    assert [type(each.event) for each in site.decide(2 * MINUTE).decisions] == [e.StepEnded]
    step = site.decide(1).decisions[0].event
    assert isinstance(step, e.StepStarted) and step.action is Action.REBOOT
    site.add(e.StepEnded(site.now + 1, "n0", step.attempt, succeeded=True))
    test = site.decide(2).decisions[0].event
    assert isinstance(test, e.VerificationStarted) and test.suite is Suite.FULL, "quick is for a reset"


def test_a_rack_that_is_one_domain_is_drained_as_a_whole() -> None:
    site = Site(replace(ROOMY, rack_tolerates=2))
    site.fail(0, 1)
    assert drains(site.decide()) == ["n0", "n1"]
    site.fail(2)
    assert drains(site.decide(1)) == ["n2", "n3"]
    site.add(e.Drained(site.now, "n3"))
    site.decide(1)
    assert site.fleet.nodes["n3"].phase is Phase.QUARANTINED_RACK


def test_what_others_drained_is_left_alone() -> None:
    site = Site()
    site.add(e.DrainRequested(site.now, "n0", "alice", "asked"))
    site.add(e.Drained(site.now, "n0"))
    site.fail(0)
    assert site.decide(1).held == {"n0": "drained by alice"}
    site.add(e.DrainReleased(site.now, "n0", "alice"))
    assert isinstance(site.decide(1).decisions[0].event, e.StepStarted)
    assert not any(hold.owner == OURS for hold in site.fleet.nodes["n1"].holds)


def test_a_breaker_that_stays_for_years_does_not_grow_with_each_drain() -> None:
    found = Breakers(Limits())
    found.trips["check", "c"] = Trip(0.0)
    for number in range(1000):
        found._canary(("check", "c"), f"n{number % 5}", number * 3600.0)
    canaries = list(found.trips["check", "c"].canaries)
    assert {node for node, _ in canaries} == {f"n{number}" for number in range(5)} and len(canaries) < 20
    assert canaries[-1] == ("n4", 999 * 3600.0)


FACTS = replace(ROOMY, trusted=frozenset(), facts=frozenset({"gpu_lost"}))


def test_a_check_that_states_a_fact_drains_at_its_first_verdict_and_others_stay_in_shadow() -> None:
    site = Site(FACTS)
    site.fail(1, check="gpu_lost")
    site.fail(2, check="thermal_margin")
    assert drains(site.decide()) == ["n1"]


def test_no_answer_is_no_fact() -> None:
    """It stays in shadow, also when it lasts, and a passing answer before or after it changes nothing."""
    site = Site(FACTS)
    site.fail(1, check="gpu_lost", status=Status.UNKNOWN)
    assert not drains(site.decide()) and not drains(site.decide(HOUR))
    assert site.fleet.nodes["n1"].phase is Phase.IN_SERVICE
    site.fail(1, check="gpu_lost")
    assert drains(site.decide(1.0)) == ["n1"]


def test_a_fact_keeps_to_the_breakers_and_to_its_record() -> None:
    site = Site(replace(FACTS, cluster_out=0.05))
    site.fail(1, 9, 17, check="gpu_lost")
    assert len(drains(site.decide())) == 2, "2 of 40 may be out"
    wrong = Site(replace(FACTS, judged_minimum=5))
    for number in range(5):
        wrong.fail(20 + number, check="gpu_lost")
        verdict = f"v{20 + number}-{wrong.now}"
        wrong.add(e.Judged(wrong.now + number, f"n{20 + number}", "gpu_lost", verdict, False, "operator:x"))
    wrong.fail(1, check="gpu_lost")
    assert "n1" not in drains(wrong.decide(1.0)), "wrong in 5 of 5 cases: it is in shadow"


def test_an_unknown_answer_after_a_fact_does_not_bring_the_node_back() -> None:
    site = Site(replace(FACTS, cluster_out=0.05))
    site.fail(9, 17, check="gpu_lost")
    site.decide()
    site.fail(1, check="gpu_lost")
    assert not drains(site.decide(1.0)), "the breaker is open"
    site.fail(1, check="gpu_lost", status=Status.UNKNOWN)
    site.decide(1.0)
    assert site.fleet.nodes["n1"].phase is Phase.SUSPECT and not site.fleet.nodes["n1"].is_schedulable(
        site.now
    )


def fresh(site: "Site", node: str = "new") -> None:
    site.add(e.Registered(site.now, node, "r9", "l9", Phase.DRAINED))
    site.add(e.Booted(site.now, node, "b1"))


@pytest.mark.parametrize("is_verifying", [False, True])
def test_a_node_that_starts_again_before_it_was_in_service_is_an_incident(is_verifying: bool) -> None:
    site = Site(spares=2)
    fresh(site)
    if is_verifying:
        site.decide(1)
        assert site.fleet.nodes["new"].phase is Phase.VERIFYING
    site.add(e.Booted(site.now + 1, "new", "b2", "its pod was ended by signal 9 (SIGKILL)"))
    plan = site.decide(2)
    assert drains(plan) == ["new"] and site.fleet.nodes["new"].holds[0].evidence == "boot:b2"
    assert site.fleet.nodes["new"].is_drained_by_us and not drains(site.decide(1))


def test_a_spare_that_starts_again_is_an_incident_and_takes_no_other_spare() -> None:
    site = Site(WITH_DEAD, spares=2)
    site.add(e.Booted(site.now, "n40", "b2"))
    plan = site.decide(1)
    assert drains(plan) == ["n40"]
    assert not [each for each in plan.decisions if isinstance(each.event, e.SpareReserved)]


def test_a_start_that_was_asked_for_and_the_first_one_are_no_incidents() -> None:
    site = Site(spares=2)
    fresh(site)
    assert not drains(site.decide(1)), "the first start"
    site.add(e.DrainRequested(site.now, "n41", "stopped", "the cloud was stopped"))
    site.add(e.Booted(site.now + 1, "n41", "b2"))
    assert not drains(site.decide(2)), "others hold it"
    site.fail(3)
    site.decide(1)
    site.add(e.Drained(site.now, "n3"))
    site.decide(1)
    site.add(e.Booted(site.now + 1, "n3", "b2"))
    assert not drains(site.decide(2)), "a step of its repair"


def test_a_node_that_passed_its_tests_since_is_not_drained_for_an_earlier_start() -> None:
    site = Site(replace(Limits(), smallest_cluster_limit=0, cluster_out=0.0), spares=2)
    fresh(site)
    site.add(e.Booted(site.now + 1, "new", "b2"))
    plan = site.decide(2)
    assert not drains(plan), "no more nodes may be drained"
    attempt = site.fleet.nodes["new"].attempts
    site.add(e.VerificationEnded(site.now + 1, "new", attempt, True, site.now + 7 * DAY))
    assert site.fleet.nodes["new"].phase is Phase.READY_SPARE and not site.fleet.nodes["new"].restarted
