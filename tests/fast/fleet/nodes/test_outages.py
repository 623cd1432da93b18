"""Time that a tenant is not charged: spares and what the platform took out, never what it uses (BILL-03)."""

import math
import random

import pytest

from neocloud.fleet.control.controller import Fleet
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes import incidents, outages
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.incidents import Incidents
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import GRACE_SECONDS, Cause, Outages
from neocloud.fleet.policy.actions import Suite
from neocloud.fleet.policy.limits import Limits
from tests.fast.fleet.control.walk import Walk

LIMITS = Limits(trusted=frozenset({"cpu"}))


class Log:
    """The fold over a log, as the service does it."""

    def __init__(self, limits: Limits = LIMITS, kept_seconds: float = math.inf) -> None:
        self.fleet, self.incidents, self.outages = Fleet(limits, 1), Incidents(), Outages(kept_seconds)

    def take(self, *events: Event) -> "Log":
        for event in events:
            before = self.fleet.nodes.get(event.node) or NodeState(event.node)
            if self.fleet.apply(event):
                self.incidents.observe(event, before)
                self.outages.observe(event, self.fleet.nodes[event.node], self.incidents)
        return self

    def seen(self, now: float = 1e6) -> list[tuple[Cause, str, float, float]]:
        return [(each.cause, each.evidence, each.begin, each.end_by(now)) for each in self.outages.all]


def serving(node: str = "n") -> list[Event]:
    return [
        e.Registered(1, node, "", "", Phase.DRAINED),
        e.Booted(1, node, "b1"),
        e.VerificationStarted(2, node, Suite.FULL, 1, 100),
        e.VerificationEnded(3, node, 1, passed=True, valid_until=1e6),
        e.SpareReserved(40, node),
        e.Attached(41, node),
        e.Returned(42, node),
    ]


def fault(at: float = 50) -> e.Verdict:
    return e.Verdict(at, "n", "v1", "cpu", Status.FAIL, "b1", "1 vCPU", ">= 2 vCPU", "node report", "1")


DRAIN = e.DrainRequested(60, "n", OURS, "v1", "cpu")
START = [(Cause.VERIFICATION, "", 1, 3), (Cause.SPARE, "", 3, 40)]
"""What each of these nodes has before it serves."""
AGAIN = [
    e.VerificationStarted(70, "n", Suite.FULL, 2, 200),
    e.VerificationEnded(80, "n", 2, passed=True, valid_until=1e6),
]


def test_a_worker_is_not_charged_until_it_is_verified_nor_as_a_spare() -> None:
    assert Log().take(*serving()).seen() == START


def test_a_fault_counts_from_its_detection_until_the_node_is_reserved_again() -> None:
    log = Log().take(*serving(), fault(), DRAIN, e.Drained(65, "n"), *AGAIN)
    assert log.seen(now=90) == [*START, (Cause.FAULT, "v1", 50, 80), (Cause.SPARE, "", 80, 90)]
    log.take(e.SpareReserved(85, "n", "m"), e.Attached(86, "n"), e.Returned(87, "n"))
    assert log.seen()[-1] == (Cause.SPARE, "", 80, 85)
    assert "cpu: 1 vCPU (wanted >= 2 vCPU" in log.outages.of("n", "v1")[0].reason


def test_a_fault_that_passes_by_itself_credits_nothing() -> None:
    passed = e.Verdict(55, "n", "v2", "cpu", Status.PASS, "b1", "2 vCPU", ">= 2 vCPU", "node report", "1")
    assert Log().take(*serving(), fault(), passed).seen() == START


@pytest.mark.parametrize("owner", ["slurm", "check", "maintenance", "health-check", "cluster", "stop"])
def test_a_drain_that_a_tenant_can_order_or_forge_is_charged(owner: str) -> None:
    """Root of a cluster writes any reason in Slurm, also that of the host's maintenance."""
    log = Log().take(*serving(), e.DrainRequested(60, "n", owner, "free?"), e.Drained(61, "n"))
    assert log.seen() == START


def test_a_worker_on_a_drained_host_is_not_charged_once_no_job_runs() -> None:
    hold = e.DrainRequested(60, "n", "host:gpu-1", "the host is drained: fan")
    log = Log().take(*serving(), e.Assigned(45, "n", "t", "7"), hold)
    assert log.seen() == START
    log.take(e.Unassigned(70, "n", "7"), e.Drained(71, "n"))
    assert log.seen(100) == [*START, (Cause.MAINTENANCE, "host", 71, 100)]
    assert log.outages.of("n", "host")[0].reason == "the host is drained: fan"


def test_a_tenant_who_keeps_a_broken_node_from_repair_pays_for_it() -> None:
    log = Log().take(*serving(), fault(), DRAIN, e.Drained(65, "n"))
    log.take(e.DrainRequested(66, "n", "slurm", "mine"))
    assert log.seen() == [*START, (Cause.FAULT, "v1", 50, 66)]
    assert log.take(e.DrainReleased(99, "n", "slurm")).seen(100)[-1] == (Cause.FAULT, "v1", 99, 100)


def test_a_job_that_runs_on_on_a_faulty_node_is_charged_after_the_grace() -> None:
    """Else a tenant that fakes a fault computes for nothing."""
    log = Log().take(*serving(), e.Assigned(45, "n", "t", "7"), fault(), DRAIN)
    end = 60 + GRACE_SECONDS
    assert log.seen(now=9000) == [*START, (Cause.FAULT, "v1", 50, end)]
    log.take(e.Drained(9000, "n"))
    assert log.seen(now=9100) == [*START, (Cause.FAULT, "v1", 50, end), (Cause.FAULT, "v1", 9000, 9100)]


def test_the_time_before_the_drain_is_charged_but_for_the_grace() -> None:
    drained = e.DrainRequested(8000, "n", OURS, "v1", "cpu")
    with_job = Log().take(*serving(), e.Assigned(45, "n", "t", "7"), fault(), drained)
    assert with_job.seen(now=8001)[-1] == (Cause.FAULT, "v1", 8000 - GRACE_SECONDS, 8001)
    idle = Log().take(*serving(), fault(), drained)
    assert idle.seen(now=8001)[-1] == (Cause.FAULT, "v1", 8000 - GRACE_SECONDS, 8001)


def test_a_spare_that_a_tenant_resumed_for_a_job_is_charged_while_the_job_runs() -> None:
    log = Log().take(*serving()[:4], e.Occupied(10, "n", "7"), e.Vacated(5000, "n"))
    assert log.seen(now=5001)[1:] == [(Cause.SPARE, "", 3, 10), (Cause.SPARE, "", 5000, 5001)]


def test_an_operators_drain_counts_once_no_job_runs() -> None:
    log = Log().take(
        *serving(), e.Assigned(45, "n", "t", "7"), e.DrainRequested(60, "n", "operator:a", "cable")
    )
    assert log.seen() == START
    assert log.take(e.Drained(900, "n")).seen(901)[-1] == (Cause.OPERATOR, "cable", 900, 901)


def test_events_that_come_twice_or_late_credit_nothing_more() -> None:
    log = [*serving(), fault(), DRAIN, e.Drained(65, "n"), *AGAIN]
    twice = [event for each in log for event in (each, each)]
    assert Log().take(*twice, *log).seen(90) == Log().take(*log).seen(90)


@pytest.mark.parametrize("seed", range(8))
def test_outages_of_a_node_never_overlap_and_a_replay_has_the_same(seed: int) -> None:
    walk = Walk(seed)
    live, chance = Log(walk.fleet.limits), random.Random(seed)
    known = 0
    for _ in range(1500):
        walk.step()
        if chance.random() < 0.05:
            node = chance.choice(walk.names)
            job = chance.random() < 0.5
            walk.append(e.Occupied(walk.now, node, "7") if job else e.Vacated(walk.now, node))
        live.take(*walk.log[known:])
        known = len(walk.log)
    assert Log(walk.fleet.limits).take(*walk.log).seen(walk.now) == live.seen(walk.now)
    by_node: dict[str, list[tuple[float, float]]] = {}
    for each in live.outages.all:
        by_node.setdefault(each.node, []).append((each.begin, each.end_by(walk.now)))
    assert len(live.outages.all) > 50
    for stretches in by_node.values():
        assert all(begin <= end for begin, end in stretches)
        ordered = sorted(stretches)
        assert all(end <= begin for (_, end), (begin, _) in zip(ordered, ordered[1:], strict=False))


@pytest.mark.parametrize("seed", range(2))
def test_old_ones_are_left_to_the_events_but_for_those_of_incidents(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "MOST_PAST", 3)
    monkeypatch.setattr(outages, "LEAST", 10)
    kept_seconds = 4 * 3600.0
    walk = Walk(seed)
    whole, kept = Log(walk.fleet.limits), Log(walk.fleet.limits, kept_seconds)
    known = 0
    for _ in range(3000):
        walk.step()
        for log in (whole, kept):
            log.take(*walk.log[known:])
        known = len(walk.log)
    since = kept.outages.complete_since
    assert since > 0 and len(whole.outages.all) > 2 * len(kept.outages.all), "old ones were left out"
    after = [each for each in whole.outages.all if each.end_by(walk.now) > since]
    assert [each for each in kept.outages.all if each.end_by(walk.now) > since] == after and after
    for each in kept.incidents.all:
        assert kept.outages.of(each.node, each.evidence) == whole.outages.of(each.node, each.evidence)
