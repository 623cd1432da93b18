"""Traffic that the control plane remembers, and the reconcilers it wakes for it."""

from datetime import timedelta
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.services.inference.gateway_link import TrafficBoard
from neocloud.testing.waiting import FakeClock

Traffic = contract.message("neocloud.inference.v1.Traffic")
QUIET = timedelta(seconds=60)


def reported(clock: FakeClock, in_flight: int = 0, waiting: int = 0, *, asked: bool = True) -> Any:
    item = Traffic(deployment_id="one", in_flight=in_flight, waiting=waiting)
    if asked:
        item.last_request_at.FromDatetime(clock.now())
    return item


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def board(clock: FakeClock) -> TrafficBoard:
    return TrafficBoard(clock)


async def test_the_first_request_wakes_and_the_same_load_does_not_wake_again(
    board: TrafficBoard, clock: FakeClock
) -> None:
    assert board.report([reported(clock, waiting=1)]) == {"one"}
    for _ in range(3):
        await clock.advance(1)
        assert board.report([reported(clock, waiting=1)]) == set()
    assert board.report([reported(clock, in_flight=4)]) == {"one"}
    assert board.report([reported(clock, in_flight=3)]) == set()


async def test_a_request_after_a_pause_wakes_though_it_is_over_already(
    board: TrafficBoard, clock: FakeClock
) -> None:
    board.report([reported(clock, in_flight=1)])
    await clock.advance(30)
    assert board.report([reported(clock, asked=False)]) == set()
    assert board.report([reported(clock)]) == {"one"}


async def test_the_peak_is_forgotten_when_it_is_old(board: TrafficBoard, clock: FakeClock) -> None:
    for load in (9, 5, 7, 2):
        board.report([reported(clock, in_flight=load)])
        await clock.advance(10)
    assert [board.demand("one", timedelta(seconds=each)).peak for each in (10, 20, 30, 40)] == [2, 7, 7, 9]
    assert board.demand("one", QUIET).load == 2


async def test_what_is_left_out_of_a_report_is_idle(board: TrafficBoard, clock: FakeClock) -> None:
    board.report([reported(clock, in_flight=2)])
    last = clock.now()
    await clock.advance(1)
    board.report([])
    demand = board.demand("one", QUIET)
    assert (demand.load, demand.peak, demand.last_request_at) == (0, 2, last)


async def test_a_gateway_that_falls_silent_is_heard_again(board: TrafficBoard, clock: FakeClock) -> None:
    assert board.demand("one", QUIET).reported_since is None
    board.report([reported(clock, in_flight=2)])
    first = clock.now()
    await clock.advance(10)
    board.report([reported(clock, in_flight=2)])
    assert board.demand("one", QUIET).reported_since == first
    await clock.advance(20)
    assert (board.demand("one", QUIET).reported_since, board.demand("one", QUIET).load) == (None, 0)
    board.report([])
    assert board.demand("one", QUIET).reported_since == clock.now()


async def test_a_clock_that_is_ahead_keeps_nothing_awake(board: TrafficBoard, clock: FakeClock) -> None:
    item = reported(clock)
    item.last_request_at.FromDatetime(clock.now() + timedelta(days=1))
    board.report([item])
    assert board.demand("one", QUIET).last_request_at == clock.now()


async def test_waking_is_as_a_request(board: TrafficBoard, clock: FakeClock) -> None:
    board.wake("one")
    assert board.demand("one", QUIET).last_request_at == clock.now()
