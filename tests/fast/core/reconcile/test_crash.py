"""A worker killed at any moment of create, scale and delete loses nothing and makes nothing twice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from neocloud.core.reconcile import Worker
from neocloud.core.store import Store
from neocloud.testing.crash import Crashed, Fragile, Fuse, crash_everywhere
from neocloud.testing.waiting import FakeClock
from tests.fast.core.reconcile.toy_reconcilers import Cloud
from tests.iterations import iterations

ID = "slurmcluster-bank"


class ClusterStory:
    """Create with 2 machines, scale to 4, to 1, delete."""

    seconds = 300.0

    def __init__(self, cloud: Cloud, take_over: bool) -> None:
        self.store: Store = cloud.store
        self.engine: Any = cloud.office
        self.clock: FakeClock = cloud.clock
        self._cloud = cloud
        self._take_over = take_over
        self.actions: Sequence[Callable[[], Awaitable[Any]]] = (
            lambda: cloud.requests.create(count=2),
            lambda: cloud.requests.scale(ID, 4),
            lambda: cloud.requests.scale(ID, 1),
            lambda: cloud.requests.delete(ID),
        )

    def worker(self, store: Store, engine: Any) -> Worker:
        return self._cloud.worker(store, engine, take_over=self._take_over, poll_seconds=30)

    async def is_converged(self) -> bool:
        return not await self._cloud.unfinished()

    async def check(self) -> None:
        await self._cloud.check()
        operations, _ = await self.store.read(lambda tx: tx.list_operations())
        assert {operation.code for operation in operations} == {0}

    async def close(self) -> None:
        """All rounds share one cloud: what a round leaves behind, the next one's check would find."""


@pytest.mark.parametrize("take_over", [True, False], ids=["taken over at once", "when the lease runs out"])
@pytest.mark.repeated
async def test_fifty_crashes_of_each_change_leave_no_orphan_and_no_duplicate(
    cloud: Cloud, take_over: bool
) -> None:
    async def new_story() -> ClusterStory:
        return ClusterStory(cloud, take_over)

    assert await crash_everywhere(new_story, rounds=iterations(50)) > 2 * iterations(50)


async def test_the_crash_test_itself_finds_a_worker_that_forgets(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that gives machines to clusters without looking first must be caught."""

    async def blind(owner: str) -> list[str]:
        row = await cloud.row()
        seen = [machine for machine, of in cloud.office.machines.items() if of == owner]
        return seen if row and row.observed_version else []

    async def new_story() -> ClusterStory:
        return ClusterStory(cloud, True)

    monkeypatch.setattr(cloud.office, "machines_of", blind)

    with pytest.raises(AssertionError) as caught:
        await crash_everywhere(new_story, rounds=20)
    assert any("seed" in note for note in caught.value.__notes__)


async def test_nothing_reaches_the_world_after_the_crash() -> None:
    class World:
        calls = 0

        async def act(self) -> None:
            World.calls += 1

    fragile = Fragile(World(), Fuse(2))
    for expected in (1, 1):
        with pytest.raises(Crashed, match="after act"):
            await fragile.act()
        assert World.calls == expected


async def test_a_worker_beside_a_dead_one_waits_for_its_lease(cloud: Cloud) -> None:
    fuse = Fuse(12)
    dead = asyncio.create_task(
        cloud.worker(Fragile(cloud.store, fuse), Fragile(cloud.office, fuse), take_over=False).run()  # type: ignore[arg-type]
    )
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: fuse.is_blown)
    dead.cancel()
    await asyncio.wait({dead})
    successor = asyncio.create_task(cloud.worker(take_over=False).run())

    async def converged() -> bool:
        return not await cloud.unfinished()

    assert 9 < await cloud.clock.run_until(converged) < 13
    await cloud.check()
    successor.cancel()
    await asyncio.wait({successor})
