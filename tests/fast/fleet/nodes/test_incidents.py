"""A drain by the controller keeps its own times and its own spare when an operator drains the node later."""

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event
from neocloud.fleet.policy.actions import Suite
from tests.fast.fleet.nodes.test_outages import AGAIN, DRAIN, Log, fault, serving

SPARE = [
    e.SpareReserved(61, "m", replaces="n"),
    e.Drained(62, "n"),
    e.Attached(63, "m"),
    e.Returned(64, "m"),
]
REPLACED: list[Event] = [*serving("n"), *serving("m")[:4], fault(), DRAIN, *SPARE, *AGAIN]
OTHERS = "operator:o"
DRAINED_BY_OTHERS: list[Event] = [
    e.SpareReserved(90, "n"),
    e.Attached(91, "n"),
    e.Returned(92, "n"),
    e.DrainRequested(100, "n", OTHERS, "new cables"),
]


def test_a_later_drain_by_others_changes_no_time_of_an_incident() -> None:
    log = Log().take(*REPLACED)
    found = log.incidents.by_node["n"]
    assert (found.drained_at, found.spare, found.reserved_at) == (62, "m", 61)
    assert log.take(*DRAINED_BY_OTHERS, e.Drained(110, "n")).incidents.by_node["n"].drained_at == 62


def test_a_spare_for_a_node_that_others_drained_is_none_of_its_last_incident() -> None:
    log = Log().take(
        *REPLACED, *DRAINED_BY_OTHERS, *serving("k")[:4], e.SpareReserved(101, "k", replaces="n")
    )
    found = log.incidents.by_node["n"]
    assert (found.spare, found.reserved_at, found.ready_at) == ("m", 61, 64)


def test_an_incident_that_lasts_gets_the_spare_that_comes_late() -> None:
    late = e.SpareReserved(99, "m", replaces="n")
    log = Log().take(*serving("n"), *serving("m")[:2], fault(), DRAIN)
    log.take(e.VerificationStarted(80, "m", Suite.FULL, 1, 200))
    log.take(e.VerificationEnded(90, "m", 1, passed=True, valid_until=1e6), late)
    assert log.incidents.by_node["n"].spare == "m"
