"""How an image that a user makes becomes a volume: a copy of a disk's or a snapshot's, taken once.

Images that came with the cloud are files of the engine; there is nothing to do for them.
"""

from collections.abc import Sequence
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, Step
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, Observation
from neocloud.services.compute.reconcile.copies import copy_volume, require_source
from neocloud.services.compute.reconcile.volumes import LOOK_AGAIN_SECONDS, VolumeScope, remove_volume
from neocloud.services.compute.render import VolumeSource, VolumeView
from neocloud.services.compute.resources.disk import IMAGE, ImageStatus, is_public_image


class ImageReconciler:
    kind = IMAGE

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def scope(self, context: Context) -> VolumeScope:
        image = wire.resource_message(context.resource)
        volume = VolumeView(
            image.metadata.id, image.status.storage_size_bytes, VolumeSource(resource_id=_source_id(image))
        )
        is_file = is_public_image(image.metadata.id)
        observation = Observation() if is_file else await self._engine.observe(image.metadata.id)
        return VolumeScope(context, image, volume, observation)

    def steps(self, scope: VolumeScope) -> Sequence[Step]:
        if is_public_image(scope.volume.id):
            return ()
        return (
            Step("Wait for what it is made of", self._wait_for_source),
            Step("Copy the disk", self._copy),
        )

    def delete_steps(self, scope: VolumeScope) -> Sequence[Step]:
        return () if is_public_image(scope.volume.id) else (Step("Remove the volume", self._remove),)

    def status(self, scope: VolumeScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status: Any = ImageStatus()
        status.CopyFrom(scope.resource.status)
        status.state = ImageStatus.State.Value(state)
        status.state_description = result.message
        status.reconciling = bool(result.waiting)
        return result.with_status(status, state, resync_seconds=LOOK_AGAIN_SECONDS)

    async def _wait_for_source(self, scope: VolumeScope) -> None:
        if not (scope.was_made or scope.is_there):
            await require_source(scope.context, _source_id(scope.resource))

    async def _copy(self, scope: VolumeScope) -> None:
        await copy_volume(self._engine, self._store, scope, _source_id(scope.resource))

    async def _remove(self, scope: VolumeScope) -> None:
        await remove_volume(self._engine, scope)


def _source_id(image: Any) -> str:
    return image.spec.source_disk_id or image.spec.source_disk_snapshot_id


def _state(scope: VolumeScope, result: ReconcileResult) -> str:
    if scope.is_deleting:
        return "DELETING"
    if result.error:
        return "ERROR"
    return "READY" if result.is_done else "CREATING"
