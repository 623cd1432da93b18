"""Many askers, few runs, and never an answer from before the question."""

import asyncio

import pytest

from neocloud.engines.podman.network.namespace_networks import SingleFlight


class Job:
    def __init__(self) -> None:
        self.wanted = 0
        self.made: list[int] = []
        self.gate = asyncio.Event()

    async def __call__(self) -> None:
        seen = self.wanted
        await self.gate.wait()
        self.made.append(seen)


async def test_those_who_wait_share_one_run_that_saw_their_request() -> None:
    job = Job()
    single_flight = SingleFlight(job)
    askers = []
    for wanted in range(1, 11):
        job.wanted = wanted
        askers.append(asyncio.create_task(single_flight()))
        await asyncio.sleep(0)
    job.gate.set()
    await asyncio.gather(*askers)
    assert job.made == [1, 10]


async def test_failure_is_told_to_who_asked_and_the_next_run_is_a_new_one() -> None:
    runs = []

    async def fails_first() -> None:
        runs.append(None)
        if len(runs) == 1:
            raise ValueError("first")

    single_flight = SingleFlight(fails_first)
    first, second = await asyncio.gather(single_flight(), single_flight(), return_exceptions=True)
    assert isinstance(first, ValueError) and second is None and len(runs) == 2
    with pytest.raises(ValueError, match="again"):
        await SingleFlight(_raise)()


async def _raise() -> None:
    raise ValueError("again")
