"""Workers on real databases and real time: on a file, and several at once on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.store import Store, open_store
from neocloud.testing.waiting import until
from tests.fast.core.reconcile.toy_reconcilers import Cloud, Office, Requests

_DEADLINE_SECONDS = 60


@pytest.fixture(params=["sqlite", "postgresql"])
def addresses(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the address of each server's store: a file serves one server, PostgreSQL several."""
    if request.param == "sqlite":
        return [str(tmp_path / "state.db")]
    return [request.getfixturevalue("empty_database")] * 2


@pytest.fixture
async def stores(addresses: list[str]) -> AsyncIterator[list[Store]]:
    stores = [await open_store(address, bytes(32), SystemClock()) for address in addresses]
    yield stores
    for store in stores:
        await store.close()


async def test_servers_share_the_work_and_do_nothing_twice(stores: list[Store]) -> None:
    clock = SystemClock()
    office = Office(clock, seconds_per_call=0.001)
    clouds = [Cloud(store, office, clock, Requests(store, clock)) for store in stores]
    workers = [cloud.worker(take_over=False, poll_seconds=0.05) for cloud in clouds]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    rows = [await clouds[0].requests.create(f"c{number}", count=2) for number in range(6)]

    async def converged() -> bool:
        return not await clouds[0].unfinished()

    await until(converged)
    await clouds[0].check()
    assert office.calls.count("rent") == 12
    for row in rows:
        await clouds[0].requests.delete(row.id)
    await until(converged)
    assert (office.machines, office.volumes) == ({}, set())
    await asyncio.gather(*(worker.stop() for worker in workers), *running)
