"""Figures of reliability: what counts, for how long, and the interval of the rate."""

import pytest

from neocloud.fleet.nodes.incidents import Incident
from neocloud.fleet.nodes.outages import Cause, Outage
from neocloud.fleet.nodes.reliability import Observed, poisson_interval, reliability
from neocloud.fleet.policy.limits import DAY

MONTH = 30 * DAY
EXACT = {0: (0.0, 3.689), 1: (0.0253, 5.572), 10: (4.795, 18.39), 100: (81.36, 121.6)}
"""Bounds of the exact 95% interval of a Poisson mean (Garwood, 1936), as tables have them."""


@pytest.mark.parametrize("count", sorted(EXACT))
def test_the_interval_is_near_the_exact_one(count: int) -> None:
    low, high = poisson_interval(count)
    exact_low, exact_high = EXACT[count]
    assert low == pytest.approx(exact_low, rel=0.03, abs=0.02) and high == pytest.approx(exact_high, rel=0.03)


def test_faults_are_counted_by_check_and_what_was_asked_for_is_none() -> None:
    incidents = [
        Incident("v1", "ecc: 3", 5 * DAY, 5 * DAY, ready_at=5 * DAY + 40, check="ecc"),
        Incident("v2", "ecc: 9", 6 * DAY, 6 * DAY, ready_at=6 * DAY + 100, check="ecc"),
        Incident("boot:2026", "it started again", 7 * DAY, 7 * DAY),
        Incident("ticket:1", "a replacement was asked for", 8 * DAY, 8 * DAY, ready_at=8 * DAY + 1),
        Incident("v0", "before", -1.0, -1.0, check="ecc"),
        Incident("v9", "after", MONTH, MONTH, check="ecc"),
    ]
    found = reliability([Observed({"a": 0.0, "b": 20 * DAY}, incidents, [])], 0.0, MONTH)
    assert found.faults == {"ecc": 2, "restart": 1} and found.replacement_seconds == (40.0, 100.0)
    assert found.node_seconds == 40 * DAY, "the second node was watched for ten days of the month"
    rate = found.rate()
    assert rate is not None and rate[0] == pytest.approx(75.0) and rate[1] < 75.0 < rate[2]
    assert found.availability == 1.0


def test_time_out_of_service_is_that_within_the_month_and_a_spare_is_available() -> None:
    outages = [
        Outage("a", Cause.FAULT, "v1", "", -DAY, DAY),
        Outage("a", Cause.MAINTENANCE, "w1", "", 29 * DAY),
        Outage("b", Cause.SPARE, "", "", 0.0, 20 * DAY),
        Outage("b", Cause.FAULT, "v2", "", 2 * DAY, 4 * DAY, limit=3 * DAY),
        Outage("b", Cause.OPERATOR, "x", "", -3 * DAY, -2 * DAY),
        Outage("retired", Cause.FAULT, "v3", "", DAY),
        Outage("repaired", Cause.FAULT, "v4", "", DAY, 20 * DAY),
    ]
    since = {"a": -DAY, "b": 0.0, "repaired": MONTH}
    found = reliability([Observed(since, [], outages)], 0.0, MONTH)
    assert found.out_of_service_seconds == {Cause.FAULT: 2 * DAY, Cause.MAINTENANCE: DAY}
    assert found.availability == pytest.approx(57 / 60)


def test_nothing_is_said_of_no_nodes() -> None:
    found = reliability([], 0.0, MONTH)
    assert found.rate() is None and found.availability is None and not found.faults
