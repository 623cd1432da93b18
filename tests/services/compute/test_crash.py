"""The worker dies at any moment of creating, stopping, starting, deleting a machine, and it comes right."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from neocloud.messages.nebius.compute.v1 import InstanceSpec

from neocloud.core import contract
from neocloud.core.kind import FINALIZER
from neocloud.core.reconcile import Worker
from neocloud.core.service import Dependencies
from neocloud.core.store import Resource, Store, open_store
from neocloud.emulator.fakes import FakeMachines
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services import compute
from neocloud.services.compute.reconcile import reconcilers
from neocloud.services.compute.types import INSTANCE
from neocloud.testing.crash import CrashStory, crash_everywhere
from neocloud.testing.waiting import FakeClock
from tests.services.compute import network
from tests.services.compute.cloud import boot_disk, instance_spec

ID, PROJECT = "computeinstance-e00crash", "project-e00tests"
SETTINGS: Any = SimpleNamespace(
    image=lambda name: "launcher:test", shortest_start_seconds=6.0, region="eu-north1"
)
KINDS = (*compute.SERVICE.kinds, *network.SERVICE.kinds)


@dataclass
class MachineStory:
    """One machine with a disk of its own, in a world that survives every crash."""

    store: Store
    engine: Any
    clock: FakeClock
    seconds: float = 120.0
    actions: Sequence[Callable[[], Awaitable[None]]] = field(default_factory=tuple)

    @classmethod
    async def new(cls) -> CrashStory:
        clock = FakeClock()
        world = FakeWorld()
        engine = FakeEngine(world, responder=FakeMachines(world).respond, clock=clock)
        store = await open_store(":memory:", b"k" * 32, clock)
        await engine.apply(network.engine_network())
        await store.write(lambda tx: network.insert_network(tx, PROJECT, clock))
        story = cls(store, engine, clock)
        story.actions = (story.create, story.stop, story.start, story.delete)
        return story

    def worker(self, store: Store, engine: Any) -> Worker:
        dependencies = Dependencies(store, self.clock, engine, SETTINGS)
        return Worker(store, self.clock, reconcilers(dependencies), kinds=KINDS)

    async def create(self) -> None:
        disk = boot_disk()
        del disk["managed_disk"]["spec"]["source_image_family"]  # blank: no image is there
        spec = contract.from_dict(InstanceSpec, instance_spec(boot_disk=disk))
        now = self.clock.now()
        row = Resource(
            id=ID,
            kind=INSTANCE,
            parent_id=PROJECT,
            name="one",
            created_at=now,
            updated_at=now,
            spec=spec.SerializeToString(),
            state="STARTING",
            finalizers=(FINALIZER,),
        )
        await self.store.write(lambda tx: tx.insert(row))

    async def stop(self) -> None:
        await self._wish(is_stopped=True, state="STOPPING")

    async def start(self) -> None:
        await self._wish(is_stopped=False, state="STARTING")

    async def delete(self) -> None:
        await self._change(deleted_at=self.clock.now(), state="DELETING")

    async def is_converged(self) -> bool:
        row = await self._row()
        if row is None:
            return True
        wanted = "STOPPED" if InstanceSpec.FromString(row.spec).stopped else "RUNNING"
        return row.deleted_at is None and row.state == wanted and row.observed_version == row.resource_version

    async def check(self) -> None:
        """One pod or none, one disk, two addresses; nothing at all when it is gone."""
        row, world = await self._row(), self.engine.world
        runs = row is not None and row.state == "RUNNING"
        assert set(world.pods) == ({Reference("Pod", ID, ID)} if runs else set())
        kinds = {"nebius.compute.v1.Disk": 1, "nebius.vpc.v1.Allocation": 2}
        for kind, count in kinds.items():
            rows = await self.store.read(lambda tx, kind=kind: tx.list(kind)[0])
            assert len(rows) == (count if row else 0), f"{kind}: {rows}"
        if row is None:
            assert [name for name in world.namespaces if name] == [network.NETWORK_ID]

    async def close(self) -> None:
        await self.store.close()

    async def _row(self) -> Resource | None:
        return await self.store.read(lambda tx: tx.get(ID))

    async def _wish(self, *, is_stopped: bool, state: str) -> None:
        row = await self._row()
        assert row is not None
        spec = InstanceSpec.FromString(row.spec)
        spec.stopped = is_stopped
        version = row.resource_version + 1
        await self._change(spec=spec.SerializeToString(), state=state, resource_version=version)

    async def _change(self, **columns: Any) -> None:
        row = await self._row()
        assert row is not None
        await self.store.write(lambda tx: tx.update(replace(row, **columns)))


async def test_a_worker_that_dies_at_any_moment_leaves_nothing_wrong() -> None:
    assert await crash_everywhere(MachineStory.new, rounds=12) > 12
