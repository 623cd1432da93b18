"""How a snapshot becomes a volume: a copy of its disk's, taken once."""

from collections.abc import Sequence
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, Step
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine
from neocloud.services.compute.reconcile.copies import copy_volume, require_source
from neocloud.services.compute.reconcile.volumes import LOOK_AGAIN_SECONDS, VolumeScope, remove_volume
from neocloud.services.compute.render import VolumeSource, VolumeView
from neocloud.services.compute.resources.disk import SNAPSHOT, SnapshotStatus


class SnapshotReconciler:
    kind = SNAPSHOT

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def scope(self, context: Context) -> VolumeScope:
        snapshot = wire.resource_message(context.resource)
        source = VolumeSource(resource_id=snapshot.spec.source_disk_id)
        volume = VolumeView(snapshot.metadata.id, snapshot.status.content_size_bytes, source)
        return VolumeScope(context, snapshot, volume, await self._engine.observe(snapshot.metadata.id))

    def steps(self, scope: VolumeScope) -> Sequence[Step]:
        return (
            Step("Wait for the disk", self._wait_for_disk),
            Step("Copy the disk", self._copy),
        )

    def delete_steps(self, scope: VolumeScope) -> Sequence[Step]:
        return (Step("Remove the volume", self._remove),)

    def status(self, scope: VolumeScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status: Any = SnapshotStatus()
        status.CopyFrom(scope.resource.status)
        status.state = SnapshotStatus.State.Value(state)
        if result.is_done:
            status.storage_size_bytes = status.content_size_bytes
        return result.with_status(status, state, resync_seconds=LOOK_AGAIN_SECONDS)

    async def _wait_for_disk(self, scope: VolumeScope) -> None:
        if not (scope.was_made or scope.is_there):
            await require_source(scope.context, scope.resource.spec.source_disk_id)

    async def _copy(self, scope: VolumeScope) -> None:
        await copy_volume(self._engine, self._store, scope, scope.resource.spec.source_disk_id)

    async def _remove(self, scope: VolumeScope) -> None:
        await remove_volume(self._engine, scope)


def _state(scope: VolumeScope, result: ReconcileResult) -> str:
    if scope.is_deleting:
        return "DELETING"
    if result.error:
        return "ERROR"
    return "READY" if result.is_done else "CREATING"
