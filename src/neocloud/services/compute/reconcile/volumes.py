"""Disks and filesystems, and what they share with snapshots and images: a volume is created and removed.

A volume that existed and is gone is an error and is never created again: an empty volume in its place would
hide that data was lost.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Generic, Protocol, TypeVar

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, EngineError, Observation, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import Manifest
from neocloud.messages.nebius.compute.v1 import (
    Disk,
    DiskSnapshot,
    DiskSpec,
    DiskStatus,
    Filesystem,
    FilesystemStatus,
    Image,
)
from neocloud.messages.neocloud.compute.v1 import DiskExport
from neocloud.services.compute.encryption import disk_keys, ensure_key
from neocloud.services.compute.public import filesystem_holders
from neocloud.services.compute.render import (
    FilesystemView,
    VolumeSource,
    VolumeView,
    filesystem_objects,
    filesystem_removal,
    volume_objects,
    volume_removal,
)
from neocloud.services.compute.rules.volumes import newest_of_family
from neocloud.services.compute.types import (
    BLOCK_SIZE_BYTES,
    DISK,
    FILESYSTEM,
    IMAGE,
    PUBLIC_IMAGES_PARENT,
    DiskReason,
    DiskState,
    FilesystemReason,
    FilesystemState,
    attachment_namespace,
    is_public_image,
    readers,
    size_bytes,
    writer,
)


class Volume(Protocol):
    """A rendered volume: VolumeView, or FilesystemView for a filesystem."""

    @property
    def claim(self) -> Reference: ...


M = TypeVar("M", Disk, DiskExport, DiskSnapshot, Filesystem, Image)
V = TypeVar("V", bound=Volume)


@dataclass(frozen=True)
class VolumeScope(Generic[M, V]):
    context: Context
    resource: M
    """The message as stored."""
    volume: V
    observation: Observation
    has_source: bool = True
    """False while the source to copy cannot be found."""
    attachments: Mapping[str, str] = field(default_factory=dict[str, str])
    """The ids of the resources that attach a disk or filesystem, by reserved value."""

    @property
    def owner_id(self) -> str:
        return self.context.resource.owner_id

    @property
    def was_created(self) -> bool:
        """Return whether the volume existed once."""
        return self.context.resource.observed_version > 0

    @property
    def exists(self) -> bool:
        return self.volume.claim in self.observation.others

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None


class VolumeReconciler(ABC, Generic[M, V]):
    """Base of the reconcilers whose resource is one volume. A subclass defines the volume and the status."""

    kind = ""
    reasons: type[DiskReason] | type[FilesystemReason] = DiskReason

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    @abstractmethod
    async def scope(self, context: Context) -> VolumeScope[M, V]: ...

    def steps(self, scope: VolumeScope[M, V]) -> Sequence[Step[VolumeScope[M, V]]]:
        return (
            Step("Wait for the source", self.wait_for_source),
            Step("Keep its key", self.keep_key),
            Step("Create the volume", self.create_volume),
        )

    def delete_steps(self, scope: VolumeScope[M, V]) -> Sequence[Step[VolumeScope[M, V]]]:
        return (Step("Remove the volume", self.remove_volume),)

    @abstractmethod
    def status(self, scope: VolumeScope[M, V], result: ReconcileResult) -> ReconcileResult: ...

    async def wait_for_source(self, scope: VolumeScope[M, V]) -> None:
        """Raise RetryLater until the source can be copied; only while there is no volume yet."""

    async def keep_key(self, scope: VolumeScope[M, V]) -> None:
        """Store the key of an encrypted volume before the volume exists; check later that it is there."""

    async def create_volume(self, scope: VolumeScope[M, V]) -> None:
        if scope.was_created and not scope.exists:
            raise Failed(
                self.reasons.VOLUME_LOST,
                f"The volume {scope.volume.claim.name} is gone from the engine. Restore it from a copy, or"
                " delete the resource and create a new one.",
            )
        refused = {EngineError: self.reasons.ENGINE_REFUSED}
        await engine_call(self._engine.apply(self.objects(scope.volume)), failures=refused)

    async def remove_volume(self, scope: VolumeScope[M, V]) -> None:
        await engine_call(self._engine.remove(self.references(scope.volume)))

    @abstractmethod
    def objects(self, volume: V) -> Sequence[Manifest]: ...

    @abstractmethod
    def references(self, volume: V) -> Sequence[Reference]: ...


class DiskVolumeReconciler(VolumeReconciler[M, VolumeView]):
    """Base of the reconcilers of disks and of copies of disks."""

    def objects(self, volume: VolumeView) -> Sequence[Manifest]:
        return volume_objects(volume)

    def references(self, volume: VolumeView) -> Sequence[Reference]:
        return volume_removal(volume)


SOURCE = "source"
"""Name of the secret beside the disk that holds its source."""


DiskScope = VolumeScope[Disk, VolumeView]


class DiskReconciler(DiskVolumeReconciler[Disk]):
    kind = DISK

    async def scope(self, context: Context) -> DiskScope:
        disk = wire.resource_message(context.resource)
        source = await self._resolve_source(context, disk)
        volume = VolumeView(disk.metadata.id, size_bytes(disk.spec), source or VolumeSource())
        observation = await self._engine.observe(disk.metadata.id)
        attachments = await context.reservations(attachment_namespace(disk.metadata.id))
        return VolumeScope(
            context, disk, volume, observation, has_source=source is not None, attachments=attachments
        )

    def status(self, scope: DiskScope, result: ReconcileResult) -> ReconcileResult:
        state = _disk_state(scope, result)
        status = DiskStatus(
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

    async def _resolve_source(self, context: Context, disk: Disk) -> VolumeSource | None:
        """Return the source that the disk is copied from, None while it does not exist.

        It is resolved once and stored: a family may have another newest image tomorrow.
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

    async def wait_for_source(self, scope: DiskScope) -> None:
        if scope.was_created or scope.exists or scope.resource.spec.WhichOneof("source") is None:
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

    async def keep_key(self, scope: DiskScope) -> None:
        if scope.was_created:
            await disk_keys(self._store, [scope.volume.id])
        elif not scope.exists:
            await ensure_key(scope.context, self._store, scope.volume.source.resource_id)


async def _find_source(context: Context, disk: Disk) -> VolumeSource | None:
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


def _source_image(scope: DiskScope) -> str:
    origin = scope.volume.source.origin_id
    return origin if origin != scope.resource.spec.source_snapshot_id else ""


def _named_source(spec: DiskSpec) -> str:
    kind = spec.WhichOneof("source")
    return (
        f"family {spec.source_image_family.image_family}"
        if kind == "source_image_family"
        else getattr(spec, kind)
    )


def _disk_state(scope: DiskScope, result: ReconcileResult) -> DiskState:
    if scope.is_deleting:
        return DiskState.DELETING
    if result.error:
        is_lost = result.error.reason in (DiskReason.VOLUME_LOST, DiskReason.KEY_LOST)
        return DiskState.BROKEN if is_lost else DiskState.ERROR
    if result.is_done:
        return DiskState.READY
    return DiskState.UPDATING if scope.was_created else DiskState.CREATING


FilesystemScope = VolumeScope[Filesystem, FilesystemView]
PLAIN = "It is not encrypted at rest."
UNSIZED = (
    "Its size is not enforced: it was created by an earlier release, or the host had no loop device. To have "
    "a limit, create a new filesystem and copy the files; `neo status` says whether the host can do it."
)


class FilesystemReconciler(VolumeReconciler[Filesystem, FilesystemView]):
    kind = FILESYSTEM
    reasons = FilesystemReason

    async def scope(self, context: Context) -> FilesystemScope:
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

    def steps(self, scope: FilesystemScope) -> Sequence[Step[FilesystemScope]]:
        return (Step("Create the volume", self.create_volume),)

    async def create_volume(self, scope: FilesystemScope) -> None:
        is_in_owners_namespace = not scope.volume.has_own_namespace
        is_lost = scope.was_created and not scope.exists
        if is_in_owners_namespace and not is_lost and scope.observation == Observation():
            raise RetryLater(f"Namespace {scope.volume.namespace} of its owner does not exist yet")
        await super().create_volume(scope)

    def status(self, scope: FilesystemScope, result: ReconcileResult) -> ReconcileResult:
        state = _filesystem_state(scope, result)
        is_ready = state == FilesystemState.READY
        is_unsized = scope.volume.claim in scope.observation.unsized
        status = FilesystemStatus(
            state=FilesystemStatus.State.Value(state),
            state_description=result.message or (f"{UNSIZED} {PLAIN}" if is_unsized else PLAIN),
            size_bytes=scope.volume.size_bytes if result.is_done else scope.resource.status.size_bytes,
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


def _filesystem_state(scope: FilesystemScope, result: ReconcileResult) -> FilesystemState:
    if scope.is_deleting:
        return FilesystemState.DELETING
    if result.error:
        return FilesystemState.ERROR
    if result.is_done:
        return FilesystemState.READY
    return FilesystemState.UPDATING if scope.was_created else FilesystemState.CREATING
