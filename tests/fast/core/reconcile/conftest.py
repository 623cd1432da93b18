import asyncio
from collections.abc import AsyncIterator

import pytest

from neocloud.core.reconcile import Worker
from neocloud.core.store import open_store
from neocloud.testing.waiting import FakeClock
from tests.fast.core.reconcile.toy_reconcilers import Cloud, Office, Requests


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    clock = FakeClock()
    store = await open_store(":memory:", bytes(32), clock)
    yield Cloud(store, Office(clock), clock, Requests(store, clock))
    await store.close()


@pytest.fixture
async def worker(cloud: Cloud) -> AsyncIterator[Worker]:
    """A worker that runs."""
    worker = cloud.worker()
    running = asyncio.create_task(worker.run())
    yield worker
    running.cancel()
    await asyncio.wait({running})
