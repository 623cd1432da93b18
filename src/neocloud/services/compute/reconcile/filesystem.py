"""A filesystem becomes a volume of the engine, in a namespace of its own or in its owner's."""

from collections.abc import Sequence
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import IDLE_RESYNC_SECONDS, Context, ReconcileResult, RetryLater, Step
from neocloud.engines.base import Observation, Reference
from neocloud.engines.manifest import Manifest
from neocloud.messages.nebius.compute.v1 import FilesystemStatus
from neocloud.services.compute.public import filesystem_holders
from neocloud.services.compute.reconcile.volumes import VolumeReconciler, VolumeScope
from neocloud.services.compute.render.storage import FilesystemView, filesystem_objects, filesystem_removal
from neocloud.services.compute.types import (
    BLOCK_SIZE_BYTES,
    FILESYSTEM,
    FilesystemReason,
    FilesystemState,
    attachment_namespace,
    size_bytes,
)


class FilesystemReconciler(VolumeReconciler):
    kind = FILESYSTEM
    reasons = FilesystemReason

    async def scope(self, context: Context) -> VolumeScope:
        row = context.resource
        filesystem = wire.resource_message(row)
        view = FilesystemView(row.id, size_bytes(filesystem.spec), row.labels, row.owner_id)
        return VolumeScope(
            context,
            filesystem,
            view,
            await self._engine.observe(view.namespace),
            attachments=await context.reservations(attachment_namespace(row.id)),
        )

    def steps(self, scope: VolumeScope) -> Sequence[Step]:
        return (Step("Make the volume", self.make_volume),)

    async def make_volume(self, scope: VolumeScope) -> None:
        is_in_owners_namespace = not scope.volume.has_own_namespace
        is_lost = scope.was_made and not scope.exists
        if is_in_owners_namespace and not is_lost and scope.observation == Observation():
            raise RetryLater(f"Namespace {scope.volume.namespace} of its owner is not there yet")
        await super().make_volume(scope)

    def status(self, scope: VolumeScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        is_ready = state == FilesystemState.READY
        status: Any = FilesystemStatus(
            state=FilesystemStatus.State.Value(state),
            state_description=result.message,
            size_bytes=scope.volume.size_bytes,
            block_size_bytes=BLOCK_SIZE_BYTES,
            reconciling=not is_ready and state != FilesystemState.ERROR,
            read_write_attachments=filesystem_holders(scope.attachments, is_read_only=False),
            read_only_attachments=filesystem_holders(scope.attachments, is_read_only=True),
        )
        return result.with_status(status, state, IDLE_RESYNC_SECONDS)

    def objects(self, volume: FilesystemView) -> Sequence[Manifest]:
        return filesystem_objects(volume)

    def references(self, volume: FilesystemView) -> Sequence[Reference]:
        return filesystem_removal(volume)


def _state(scope: VolumeScope, result: ReconcileResult) -> FilesystemState:
    if scope.is_deleting:
        return FilesystemState.DELETING
    if result.error:
        return FilesystemState.ERROR
    if result.is_done:
        return FilesystemState.READY
    return FilesystemState.UPDATING if scope.was_made else FilesystemState.CREATING
