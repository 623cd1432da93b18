"""The worker dies at any moment of creating, stopping, starting, deleting a machine, and it comes right."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import InstanceSpec

from neocloud.core import contract
from neocloud.core.kind import FINALIZER
from neocloud.core.readers import ServiceRegistry, TransactionReader
from neocloud.core.reconcile import Worker
from neocloud.core.service import Dependencies
from neocloud.core.store import Resource, Store, open_store
from neocloud.core.usage import CapacityUses
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.base import Capabilities, Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services import compute
from neocloud.services.compute.public import check_capacity, instance_demands
from neocloud.services.compute.reconcile import reconcilers
from neocloud.services.compute.rules.instance import CAPACITY
from neocloud.services.compute.types import INSTANCE, MAINTENANCE_EVENT
from neocloud.testing.crash import CrashStory, crash_everywhere
from neocloud.testing.waiting import FakeClock
from tests.fast.services.compute import network
from tests.fast.services.compute.cloud import boot_disk, instance_spec
from tests.fast.services.fleet.hosts import set_drained

pytestmark = pytest.mark.slow

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
        await self._desire(is_stopped=True, state="STOPPING")

    async def start(self) -> None:
        await self._desire(is_stopped=False, state="STARTING")

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

    async def _desire(self, *, is_stopped: bool, state: str) -> None:
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


@dataclass
class DrainedHostStory(MachineStory):
    """Workloads of a host keep running while it is drained, also after their pod was lost; new ones wait."""

    is_drained: bool = False

    @classmethod
    async def new(cls) -> CrashStory:
        story = await super().new()
        assert isinstance(story, DrainedHostStory)
        story.actions = (
            *(story.create, story.lose_its_pod_while_drained, story.stop, story.start),
            *(story.release, story.stop, story.drain, story.start, story.delete),
        )
        return story

    async def drain(self) -> None:
        self.is_drained = True
        await set_drained(self.store, "gpu-1", parent=PROJECT)

    async def release(self) -> None:
        self.is_drained = False
        await set_drained(self.store, parent=PROJECT)

    async def lose_its_pod_while_drained(self) -> None:
        """Lose the pod as when the control plane dies between the end of a pod and the next one, or the power
        fails.
        """
        await self.drain()
        assert self.engine.world.take(Reference("Pod", ID, ID)) is not None
        await self._change(state="RUNNING")  # no reconciler has looked yet

    async def is_converged(self) -> bool:
        row = await self._row()
        if row is not None and row.state == "STARTING" and self.is_drained:
            states = [entry.state for entry in await self.store.read(lambda tx: tx.history(resource_id=ID))]
            return states[-2:] == ["STOPPED", "STARTING"]
        has_pod = self.engine.world.pods.keys() == {Reference("Pod", ID, ID)}
        return await super().is_converged() and (row is None or (row.state == "RUNNING") == has_pod)


SPOT, WEB = "computeinstance-e00spot", "computeinstance-e00web"


@dataclass
class PreemptionStory(MachineStory):
    """A preemptible machine, and one on demand that takes its place."""

    @classmethod
    async def new(cls) -> CrashStory:
        story = await super().new()
        assert isinstance(story, PreemptionStory)
        story.actions = (story.create_spot, story.create_web, story.delete_web)
        return story

    async def create_spot(self) -> None:
        policy = {"on_preemption": "STOP"}
        await self._insert(SPOT, preemptible=policy, recovery_policy="FAIL")

    async def create_web(self) -> None:
        await self._insert(WEB)

    async def delete_web(self) -> None:
        row = await self._of(WEB)
        assert row is not None
        deleted = replace(row, deleted_at=self.clock.now(), state="DELETING")
        await self.store.write(lambda tx: tx.update(deleted))

    async def is_converged(self) -> bool:
        spot, web = await self._of(SPOT), await self._of(WEB)
        if web is None:
            return spot is not None and spot.state in ("RUNNING", "STOPPED")
        return web.deleted_at is None and web.state == "RUNNING"

    async def check(self) -> None:
        """Each runs alone; what was preempted stays off; nothing waits any more."""
        spot, web = await self._of(SPOT), await self._of(WEB)
        running = {row.id for row in (spot, web) if row is not None and row.state == "RUNNING"}
        assert {pod.name for pod in self.engine.world.pods} == running
        events = await self.store.read(lambda tx: tx.list(MAINTENANCE_EVENT)[0])
        states = [entry.state for entry in await self.store.read(lambda tx: tx.history(resource_id=SPOT))]
        assert spot is not None and len(events) == (spot.state == "STOPPED")
        assert states.count("RUNNING") == 1
        if web is not None:
            held = await self.store.read(lambda tx: tx.held_by(WEB))
            assert not [space for space, _ in held if space.startswith("preemption")]

    async def _of(self, identifier: str) -> Resource | None:
        return await self.store.read(lambda tx: tx.get(identifier))

    async def _insert(self, identifier: str, **changes: Any) -> None:
        disk = boot_disk(f"{identifier}-boot")
        del disk["managed_disk"]["spec"]["source_image_family"]
        spec = contract.from_dict(InstanceSpec, instance_spec(boot_disk=disk, **changes))
        now = self.clock.now()
        row = Resource(
            id=identifier,
            kind=INSTANCE,
            parent_id=PROJECT,
            name=identifier,
            created_at=now,
            updated_at=now,
            spec=spec.SerializeToString(),
            state="STARTING",
            finalizers=(FINALIZER,),
        )
        inventory = Capabilities("fake", "1", cpus=4, memory_mib=1024)
        provided = ServiceRegistry().add(CapacityUses, CapacityUses(CAPACITY))

        def insert(tx: Any) -> None:
            reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
            demanded = instance_demands(spec)
            check_capacity(reader, row, demanded, [], may_wait=True, may_preempt=identifier == WEB)
            tx.insert(row)

        await self.store.write(insert)


async def test_a_preemption_survives_a_worker_that_dies_at_any_moment() -> None:
    assert await crash_everywhere(PreemptionStory.new, rounds=12) > 12


async def test_a_machine_on_a_drained_host_survives_a_worker_that_dies_at_any_moment() -> None:
    assert await crash_everywhere(DrainedHostStory.new, rounds=12) > 12


async def test_a_worker_that_dies_at_any_moment_leaves_nothing_wrong() -> None:
    assert await crash_everywhere(MachineStory.new, rounds=12) > 12
