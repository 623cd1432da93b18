"""The worker dies at any moment of an export and its deletion, and nothing is wrong or left."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import DiskSpec, DiskStatus
from neocloud.messages.neocloud.compute.v1 import DiskExportSpec, DiskExportStatus

from neocloud.core.kind import FINALIZER
from neocloud.core.reconcile import Worker
from neocloud.core.store import Resource, Store, open_store
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services import compute
from neocloud.services.compute.reconcile import disk_export_pod
from neocloud.services.compute.reconcile.disk_exports import DiskExportReconciler
from neocloud.services.compute.render import VolumeView, volume_objects
from neocloud.services.compute.types import DISK, DISK_EXPORT
from neocloud.services.storage.public import ObjectLocation
from neocloud.testing.crash import CrashStory, crash_everywhere
from neocloud.testing.waiting import FakeClock

SOURCE, ID, PROJECT = "computedisk-e00source", "computediskexport-e00crash", "project-e00tests"
PIECE = 2**18
FILE = bytes(range(256)) * 4096
"""Four pieces."""


@dataclass
class Bucket:
    """ObjectWrites of one object, which survives every crash."""

    content: bytes | None = None
    puts: int = 0

    async def put_new(self, resource_id: str, place: ObjectLocation, stream: Any) -> None:
        parts = []
        while piece := await stream.next_piece():
            parts.append(piece)
        whole = b"".join(parts)
        assert self.content in (None, whole), "only the same bytes may come again"
        self.content, self.puts = whole, self.puts + 1


@dataclass
class ExportStory:
    """An export of a disk, in a world that survives every crash."""

    store: Store
    engine: Any
    clock: FakeClock
    bucket: Bucket
    seconds: float = 120.0
    actions: Sequence[Callable[[], Awaitable[None]]] = field(default_factory=tuple)

    @classmethod
    async def new(cls) -> CrashStory:
        clock, world = FakeClock(), FakeWorld()
        engine = FakeEngine(world, responder=FakeMachines(world, exported=FILE).respond, clock=clock)
        story = cls(await open_store(":memory:", b"k" * 32, clock), engine, clock, Bucket())
        await engine.apply(volume_objects(VolumeView(SOURCE, 2**20)))
        status = DiskStatus(size_bytes=2**20, state=DiskStatus.State.Value("READY"))
        spec = DiskSpec(size_bytes=2**20).SerializeToString()
        await story._insert(SOURCE, DISK, spec, status.SerializeToString(), "READY")
        story.actions = (story.create, story.delete)
        return story

    def worker(self, store: Store, engine: Any) -> Worker:
        bucket: Any = self.bucket
        reconciler = DiskExportReconciler(engine, store, lambda: bucket, lambda: "launcher:test")
        return Worker(store, self.clock, [reconciler], kinds=compute.SERVICE.kinds)

    async def create(self) -> None:
        spec = DiskExportSpec(source_disk_id=SOURCE)
        spec.destination_storage.bucket_name, spec.destination_storage.object_name = "disks", "a.qcow2"
        status = DiskExportStatus(disk_size_bytes=2**20, state=DiskExportStatus.State.Value("CREATING"))
        await self._insert(ID, DISK_EXPORT, spec.SerializeToString(), status.SerializeToString(), "CREATING")

    async def delete(self) -> None:
        row = await self._row()
        assert row is not None
        deleted = replace(row, deleted_at=self.clock.now(), state="DELETING")
        await self.store.write(lambda tx: tx.update(deleted))

    async def is_converged(self) -> bool:
        row = await self._row()
        return row is None or (row.deleted_at is None and row.state == "READY")

    async def check(self) -> None:
        """The object is whole before anybody learns it, and no pod, key or copy is left."""
        row = await self._row()
        assert self.bucket.content == FILE
        if row is not None:
            assert DiskExportStatus.FromString(row.status).object_size_bytes == len(FILE)
        assert not list(self.engine.world.pods_of(ID))
        assert {each.kind for each in self.engine.world.objects.of(ID)} <= {"NetworkPolicy"}

    async def close(self) -> None:
        await self.store.close()

    async def _row(self) -> Resource | None:
        return await self.store.read(lambda tx: tx.get(ID))

    async def _insert(self, identifier: str, kind: str, spec: bytes, status: bytes, state: str) -> None:
        now = self.clock.now()
        row = Resource(
            id=identifier,
            kind=kind,
            parent_id=PROJECT,
            name=identifier,
            created_at=now,
            updated_at=now,
            spec=spec,
            status=status,
            state=state,
            finalizers=(FINALIZER,) if kind == DISK_EXPORT else (),
        )
        await self.store.write(lambda tx: tx.insert(row))


async def test_a_worker_that_dies_at_any_moment_of_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_export_pod, "MOST_READ", PIECE)
    await crash_everywhere(ExportStory.new, rounds=40)
