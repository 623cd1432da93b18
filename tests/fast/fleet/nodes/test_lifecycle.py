"""The state of a node: what may clear what, and what it takes to serve again. HEALTH-05."""

from dataclasses import replace

import pytest

from neocloud.fleet.control.ladder import next_action
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.lifecycle import fold
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import DAY, Limits

READY: list[Event] = [
    e.Registered(0, "n", "r", "l", Phase.DRAINED),
    e.Booted(1, "n", "b1"),
    e.VerificationStarted(2, "n", Suite.FULL, 1, 100),
    e.VerificationEnded(3, "n", 1, passed=True, valid_until=DAY),
]
SERVING = [*READY, e.SpareReserved(4, "n"), e.Attached(5, "n"), e.Returned(6, "n")]
DRAINED = [*SERVING, e.DrainRequested(20, "n", OURS, "v1"), e.Drained(21, "n")]


def verdict(at: float, status: Status = Status.FAIL, boot: str = "b1") -> e.Verdict:
    return e.Verdict(at, "n", f"v{at}", "gpu-lost", status, boot, "7 GPUs", "8 GPUs", "nvml", "1")


def after(*events: Event) -> NodeState:
    return fold("n", events)


def test_a_verified_node_serves_until_its_certificate_ends() -> None:
    state = after(*SERVING)
    assert state.is_schedulable(7) and not state.is_schedulable(DAY)
    assert not replace(state, boot="").is_schedulable(7)


@pytest.mark.parametrize("missing", range(len(SERVING)))
def test_no_step_to_service_can_be_left_out(missing: int) -> None:
    assert not after(*SERVING[:missing], *SERVING[missing + 1 :]).is_schedulable(7)


@pytest.mark.parametrize("status", [Status.FAIL, Status.UNKNOWN])
def test_unknown_is_no_better_than_failed(status: Status) -> None:
    state = after(*SERVING, verdict(10, status))
    assert state.phase is Phase.SUSPECT and not state.is_schedulable(11)
    assert after(*SERVING, verdict(10, status), verdict(12, Status.PASS)).is_schedulable(13)


def test_a_verdict_of_an_old_boot_or_a_late_one_clears_nothing() -> None:
    late = after(*SERVING, verdict(10), verdict(9, Status.PASS))
    assert late.faults
    old = after(*SERVING, e.Booted(8, "n", "b2"), verdict(10, boot="b2"), verdict(12, Status.PASS, "b1"))
    assert old.faults and old.phase is Phase.SUSPECT


def test_a_new_boot_ends_the_certificate_and_passing_checks_do_not_bring_it_back() -> None:
    state = after(*SERVING, e.Booted(8, "n", "b2"), verdict(9, Status.PASS, "b2"))
    assert state.phase is Phase.SUSPECT and state.certificate is None
    assert after(*SERVING, e.Booted(0.5, "n", "b0")).boot == "b1", "a late event"


def test_a_pass_of_a_boot_that_is_gone_gives_no_certificate() -> None:
    test = e.VerificationStarted(22, "n", Suite.FULL, 2, 99)
    passed = e.VerificationEnded(24, "n", 2, passed=True, valid_until=DAY)
    state = after(*DRAINED, test, e.Booted(23, "n", "b2"), passed)
    assert state.phase is Phase.DRAINED and state.certificate is None and state.has_failed_test


def test_a_fault_during_the_test_outlives_its_pass() -> None:
    test = e.VerificationStarted(22, "n", Suite.FULL, 2, 99)
    passed = e.VerificationEnded(24, "n", 2, passed=True, valid_until=DAY)
    assert after(*DRAINED, test, passed).phase is Phase.READY_SPARE
    state = after(*DRAINED, test, verdict(23), passed)
    assert state.phase is Phase.DRAINED and state.faults


def test_a_drain_of_others_is_theirs_to_end() -> None:
    test = e.VerificationStarted(22, "n", Suite.FULL, 2, 99)
    passed = e.VerificationEnded(24, "n", 2, passed=True, valid_until=DAY)
    held = [*DRAINED, e.DrainRequested(21.5, "n", "alice", "asked"), test, passed]
    state = after(*held, e.DrainReleased(25, "n", OURS), e.SpareReserved(25, "n"))
    assert state.phase is Phase.DRAINED and state.is_held_by_others and not state.is_drained_by_us
    assert after(*held, e.DrainReleased(26, "n", "alice")).phase is Phase.READY_SPARE
    requested_late = e.DrainRequested(21.5, "n", "alice", "asked")
    assert not after(*held, e.DrainReleased(26, "n", "alice"), requested_late).holds


def test_our_own_drain_is_not_released_and_nothing_is_repaired_under_a_foreign_one() -> None:
    draining = [*SERVING, e.DrainRequested(20, "n", OURS, "v1")]
    assert after(*draining, e.DrainReleased(21, "n", OURS)).phase is Phase.DRAINING
    foreign = e.DrainRequested(21.5, "n", "alice", "asked")
    assert after(*DRAINED, foreign, e.StepStarted(22, "n", Action.REBOOT, 2, 99)).phase is Phase.DRAINED


def test_a_spare_whose_certificate_ended_is_no_spare() -> None:
    assert after(*READY, e.SpareReserved(DAY, "n")).reserved_for is None
    returned_late = (e.SpareReserved(4, "n"), e.Attached(5, "n"), e.Returned(DAY, "n"))
    assert after(*READY, *returned_late).phase is Phase.READY_SPARE


def test_a_drain_needs_evidence() -> None:
    assert after(*SERVING, e.DrainRequested(20, "n", OURS, "")).phase is Phase.IN_SERVICE


def test_an_old_attempt_ends_nothing() -> None:
    step = e.StepStarted(22, "n", Action.REBOOT, 2, 99)
    state = after(*DRAINED, step, e.VerificationEnded(23, "n", 1, passed=True, valid_until=DAY))
    assert state.phase is Phase.REMEDIATING
    assert after(*DRAINED, step, e.StepEnded(23, "n", 2, True), step).phase is Phase.DRAINED, "a duplicate"


@pytest.mark.parametrize("to", [Phase.IN_SERVICE, Phase.READY_SPARE, Phase.VERIFYING])
def test_nobody_moves_a_node_into_service_by_hand(to: Phase) -> None:
    for phase in Phase:
        assert after(e.Registered(0, "n", "r", "l", phase), e.Moved(1, "n", to, "alice")).phase is not to


@pytest.mark.parametrize(
    ("tried", "history", "expected"),
    [
        (Action.NONE, [], Action.REBOOT),
        (Action.REBOOT, [], Action.POWER_CYCLE),
        (Action.REIMAGE, [], Action.TRIAGE),
        (Action.NONE, [(Action.REBOOT, 9 * DAY), (Action.RESET_GPU, 9.5 * DAY)], Action.REBOOT),
        (Action.NONE, [(Action.REBOOT, 9.2 * DAY), (Action.REBOOT, 9.9 * DAY)], Action.TRIAGE),
        (Action.NONE, [(Action.REBOOT, day * DAY) for day in (4, 5, 6, 7, 8)], Action.TRIAGE),
        (Action.NONE, [(Action.REBOOT, day * DAY) for day in (1, 5, 6, 7, 8)], Action.REBOOT),
    ],
)
def test_the_ladder_and_its_budgets(
    tried: Action, history: list[tuple[Action, float]], expected: Action
) -> None:
    assert next_action(Action.REBOOT, tried, history, 10 * DAY, Limits()) is expected
