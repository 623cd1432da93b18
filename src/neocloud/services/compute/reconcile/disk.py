"""A disk becomes a volume, perhaps as a copy of a snapshot or an image, and grows."""

import json
from dataclasses import asdict
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
)
from neocloud.messages.nebius.compute.v1 import DiskStatus
from neocloud.services.compute.reconcile.volumes import VolumeReconciler, VolumeScope
from neocloud.services.compute.render.storage import VolumeSource, VolumeView
from neocloud.services.compute.rules.disk import newest_of_family
from neocloud.services.compute.types import (
    BLOCK_SIZE_BYTES,
    DISK,
    IMAGE,
    PUBLIC_IMAGES_PARENT,
    DiskReason,
    DiskState,
    attachment_namespace,
    is_public_image,
    readers,
    size_bytes,
    writer,
)

SOURCE = "source"
"""Name of the secret beside the disk that holds its source."""


class DiskReconciler(VolumeReconciler):
    kind = DISK

    async def scope(self, context: Context) -> VolumeScope:
        disk = wire.resource_message(context.resource)
        source = await self._make_source(context, disk)
        volume = VolumeView(disk.metadata.id, size_bytes(disk.spec), source or VolumeSource())
        observation = await self._engine.observe(disk.metadata.id)
        attachments = await context.reservations(attachment_namespace(disk.metadata.id))
        return VolumeScope(
            context, disk, volume, observation, has_source=source is not None, attachments=attachments
        )

    def status(self, scope: VolumeScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status: Any = DiskStatus(
            state=DiskStatus.State.Value(state),
            state_description=result.message,
            source_image_id=_source_image(scope),
            size_bytes=scope.volume.size_bytes if result.is_done else scope.resource.status.size_bytes,
            block_size_bytes=scope.resource.spec.block_size_bytes or BLOCK_SIZE_BYTES,
            source_image_cpu_architecture=DiskStatus.AMD64 if _source_image(scope) else None,
            reconciling=bool(result.waiting),
            read_write_attachment=writer(scope.attachments) or scope.owner_id,
            read_only_attachments=readers(scope.attachments),
            managed_by=scope.owner_id,
        )
        return result.with_status(status, state, IDLE_RESYNC_SECONDS)

    async def _make_source(self, context: Context, disk: Any) -> VolumeSource | None:
        """Return what the disk is to be a copy of, None while that does not exist.

        It is found once and kept: a family may have another newest image tomorrow.
        """
        if disk.spec.WhichOneof("source") is None:
            return VolumeSource()
        known = await self._store.read(lambda tx: tx.secret(disk.metadata.id, SOURCE))
        if known is None:
            found = await _find_source(context, disk)
            if found is None:
                return None
            known = await context.secret(SOURCE, lambda: json.dumps(asdict(found)).encode())
        return VolumeSource(**json.loads(known))

    async def wait_for_source(self, scope: VolumeScope) -> None:
        if scope.was_made or scope.exists or scope.resource.spec.WhichOneof("source") is None:
            return
        source_id = scope.volume.source.origin_id
        row = await scope.context.get(source_id) if scope.has_source else None
        if row is None or row.deleted_at or row.state == "ERROR":
            raise Failed(
                DiskReason.SOURCE_LOST,
                f"The source of the disk ({_named_source(scope.resource.spec)}) does not exist any more. "
                "Delete this disk and create another.",
            )
        if row.state != "READY":
            raise RetryLater(f"{source_id} is {row.state}", delay_seconds=POLL_SECONDS)


async def _find_source(context: Context, disk: Any) -> VolumeSource | None:
    kind, spec = disk.spec.WhichOneof("source"), disk.spec
    if kind == "source_snapshot_id":
        return VolumeSource(resource_id=spec.source_snapshot_id, origin_id=spec.source_snapshot_id)
    image_id = spec.source_image_id or disk.status.source_image_id
    if not image_id:
        family = spec.source_image_family
        images = await context.list(IMAGE, family.parent_id or PUBLIC_IMAGES_PARENT)
        newest = newest_of_family(images, family.image_family)
        image_id = newest.id if newest else ""
    image = await context.get(image_id)
    if image is None:
        return None
    if is_public_image(image.id):
        return VolumeSource(machine_image=image.name, origin_id=image.id)
    return VolumeSource(resource_id=image.id, origin_id=image.id)


def _source_image(scope: VolumeScope) -> str:
    origin = scope.volume.source.origin_id
    return origin if origin != scope.resource.spec.source_snapshot_id else ""


def _named_source(spec: Any) -> str:
    kind = spec.WhichOneof("source")
    return (
        f"family {spec.source_image_family.image_family}"
        if kind == "source_image_family"
        else getattr(spec, kind)
    )


def _state(scope: VolumeScope, result: ReconcileResult) -> DiskState:
    if scope.is_deleting:
        return DiskState.DELETING
    if result.error:
        return DiskState.BROKEN if result.error.reason == DiskReason.VOLUME_LOST else DiskState.ERROR
    if result.is_done:
        return DiskState.READY
    return DiskState.UPDATING if scope.was_made else DiskState.CREATING
