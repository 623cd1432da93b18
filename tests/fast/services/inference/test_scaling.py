"""The number of replicas of a deployment, as golden tables: the engine is there when it is asked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.services.inference.rules.scaling import Demand, desired_replicas, quiet_time

Scaling = contract.message("neocloud.inference.v1.Scaling")
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
LONG_REPORTED = NOW - timedelta(hours=1)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def wanted(scaling: Any, demand: Demand, replicas: int, *, start_seconds: float = 0) -> int:
    return desired_replicas(
        scaling, demand, NOW, replicas, concurrency=4, start_seconds=start_seconds
    ).replicas


@pytest.mark.parametrize(
    ("bounds", "load", "replicas", "expected"),
    [
        ((1, 4), 0, 1, 1),
        ((1, 4), 4, 1, 1),
        ((1, 4), 5, 1, 2),
        ((1, 4), 17, 2, 4),
        ((0, 2), 1, 0, 1),
        ((0, 2), 400, 1, 2),
        ((2, 2), 0, 2, 2),
        ((3, 1), 0, 0, 3),  # a maximum below the minimum is none
        ((0, 0), 9, 1, 0),
    ],
)
def test_load_divided_by_what_one_replica_does_within_bounds(
    bounds: tuple[int, int], load: int, replicas: int, expected: int
) -> None:
    scaling = Scaling(min_replicas=bounds[0], max_replicas=bounds[1], idle_seconds=60)
    demand = Demand(load=load, peak=load, last_request_at=NOW if load else None, reported_since=LONG_REPORTED)
    assert wanted(scaling, demand, replicas) == expected


@pytest.mark.parametrize(
    ("idle_for", "replicas", "expected"), [(0, 1, 1), (59, 1, 1), (61, 1, 0), (61, 0, 0), (59, 0, 1)]
)
def test_it_sleeps_when_nobody_has_asked_for_the_idle_time(
    idle_for: int, replicas: int, expected: int
) -> None:
    """A request of just now wakes, also when it is over already."""
    scaling = Scaling(max_replicas=2, idle_seconds=60)
    demand = Demand(last_request_at=ago(idle_for), reported_since=LONG_REPORTED)
    assert wanted(scaling, demand, replicas) == expected


def test_what_the_busiest_moment_needed_stays_for_the_idle_time() -> None:
    scaling = Scaling(min_replicas=1, max_replicas=8, idle_seconds=60)
    busy = Demand(load=1, peak=20, last_request_at=NOW, reported_since=LONG_REPORTED)
    calm = Demand(load=1, peak=3, last_request_at=NOW, reported_since=LONG_REPORTED)
    assert (wanted(scaling, busy, 5), wanted(scaling, calm, 5)) == (5, 1)


def test_it_rests_no_sooner_than_a_cold_start_and_a_half() -> None:
    scaling = Scaling(max_replicas=1, idle_seconds=10)
    assert quiet_time(scaling, start_seconds=60) == timedelta(seconds=90)
    demand = Demand(last_request_at=ago(80), reported_since=LONG_REPORTED)
    assert wanted(scaling, demand, 1, start_seconds=60) == 1
    assert wanted(scaling, demand, 1, start_seconds=5) == 0


@pytest.mark.parametrize("reported_since", [None, ago(59), NOW])
def test_nothing_stops_before_it_was_listened_to_for_the_idle_time(reported_since: datetime | None) -> None:
    scaling = Scaling(max_replicas=4, idle_seconds=60)
    silent = Demand(reported_since=reported_since)
    assert wanted(scaling, silent, 3) == 3
    assert wanted(scaling, Demand(load=16, peak=16, reported_since=reported_since), 3) == 4
    assert wanted(scaling, Demand(reported_since=ago(61)), 3) == 0


def test_nothing_starts_by_itself_and_a_lower_maximum_counts_at_once() -> None:
    scaling = Scaling(max_replicas=2, idle_seconds=60)
    assert wanted(scaling, Demand(), 0) == 0
    assert wanted(scaling, Demand(), 5) == 2


def test_it_asks_again_when_the_idle_time_ends() -> None:
    scaling = Scaling(max_replicas=1, idle_seconds=60)

    def look(idle_for: float) -> float:
        demand = Demand(last_request_at=ago(idle_for), reported_since=LONG_REPORTED)
        return desired_replicas(scaling, demand, NOW, 1, concurrency=4).resync_seconds

    assert look(57) == pytest.approx(3)
    assert look(0) == 60
    assert look(100) == 60


def test_while_there_is_demand_it_asks_often_whether_the_busiest_moment_is_too_old() -> None:
    scaling = Scaling(max_replicas=4, idle_seconds=600)
    demand = Demand(load=1, peak=9, last_request_at=NOW, reported_since=LONG_REPORTED)
    assert desired_replicas(scaling, demand, NOW, 3, concurrency=4).resync_seconds == 10


def test_it_says_why() -> None:
    scaling = Scaling(max_replicas=2, idle_seconds=60)
    busy = Demand(load=70, peak=70, last_request_at=NOW, reported_since=LONG_REPORTED)
    assert (
        desired_replicas(scaling, busy, NOW, 1, concurrency=4).why
        == "18 for up to 70 requests at a time, 4 each; the spec allows 0 to 2"
    )
    idle = desired_replicas(scaling, Demand(reported_since=LONG_REPORTED), NOW, 1, concurrency=4)
    assert idle.why == "no request for 60 s"
