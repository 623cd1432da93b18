"""A worker with the fake engine over a store in memory, on a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from neocloud.core import wire
from neocloud.core.reconcile import Worker
from neocloud.core.store import Resource, Store, open_store
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.services.compute import SERVICE
from neocloud.services.compute.public import claim_name, filesystem_spec
from neocloud.services.compute.reconcile import FilesystemReconciler
from neocloud.services.compute.types import FILESYSTEM
from neocloud.testing.waiting import FakeClock

PROJECT_ID = "project-e00tests"


@dataclass
class Bench:
    store: Store
    clock: FakeClock
    engine: FakeEngine
    worker: Worker

    async def insert(self, filesystem_id: str, size_gibibytes: int = 10, **columns) -> None:
        now = self.clock.now()
        row = Resource(
            id=filesystem_id,
            kind=FILESYSTEM,
            parent_id=PROJECT_ID,
            name="data",
            created_at=now,
            updated_at=now,
            spec=filesystem_spec(size_gibibytes).SerializeToString(),
            state="CREATING",
            finalizers=SERVICE.kinds[0].finalizers,
        )
        await self.store.write(lambda tx: tx.insert(replace(row, **columns)))
        self.worker.notify()

    async def change(self, filesystem_id: str, **columns) -> None:
        def work(tx):
            row = tx.get(filesystem_id)
            tx.update(replace(row, updated_at=self.clock.now(), **columns))

        await self.store.write(work)
        self.worker.notify()

    async def row(self, filesystem_id: str) -> Resource | None:
        return await self.store.read(lambda tx: tx.get(filesystem_id))

    async def message(self, filesystem_id: str):
        row = await self.row(filesystem_id)
        assert row is not None
        return wire.resource_message(row)

    async def until_state(self, filesystem_id: str, state: str) -> None:
        async def is_there() -> bool:
            row = await self.row(filesystem_id)
            return (row.state if row else "GONE") == state

        await self.clock.run_until(is_there)

    def claim(self, filesystem_id: str, namespace: str = "") -> Reference:
        return Reference("PersistentVolumeClaim", namespace or filesystem_id, claim_name(filesystem_id))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = FakeClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    engine = FakeEngine(cpus=2, memory_mib=24 * 1024)
    worker = Worker(store, clock, [FilesystemReconciler(engine, store)], kinds=SERVICE.kinds)
    running = asyncio.create_task(worker.run())
    try:
        yield Bench(store, clock, engine, worker)
    finally:
        stopping = asyncio.create_task(worker.stop(grace_seconds=0))
        await clock.advance(5)
        await asyncio.gather(stopping, running)
        await store.close()
