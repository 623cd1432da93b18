"""Snapshots and images: copies of the volume of a disk, taken once, or imported from a bucket, and the images
that came with the cloud.

A disk that a machine may be writing is frozen for that time, so that the copy is consistent. Images that came
with the cloud are files of the engine and need no volume: they are rows that everyone may read. The rows
follow the folders of images when the server starts: a row whose folder is gone is deleted. Disks that were
created from it are copies and stay.
"""

import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.engines.base import Engine, Observation, PodPhase
from neocloud.engines.calls import engine_call
from neocloud.messages.nebius.compute.v1 import DiskSnapshot, Image, ImageSpec, ImageStatus
from neocloud.messages.nebius.compute.v1 import DiskSnapshotStatus as SnapshotStatus
from neocloud.services.compute.disk_import import LARGEST_STORED_BYTES
from neocloud.services.compute.encryption import disk_keys, ensure_key, ensure_key_of_copy
from neocloud.services.compute.reconcile.image_import import ImageImports
from neocloud.services.compute.reconcile.machine_scope import MachineControl
from neocloud.services.compute.reconcile.volumes import DiskVolumeReconciler, M, VolumeScope
from neocloud.services.compute.render import VolumeSource, VolumeView
from neocloud.services.compute.types import (
    IMAGE,
    INSTANCE,
    PUBLIC_IMAGE_ID_START,
    PUBLIC_IMAGES_PARENT,
    SNAPSHOT,
    DiskReason,
    DiskState,
    attachment_namespace,
    is_public_image,
    namespace,
    pod_name,
    writer,
)

if TYPE_CHECKING:
    from neocloud.settings.settings import Settings


class CopyReconciler(DiskVolumeReconciler[M]):
    """Base of the reconcilers whose volume is a copy of the one that `source_id` names."""

    @abstractmethod
    def source_id(self, resource: M) -> str: ...

    async def wait_for_source(self, scope: VolumeScope[M, VolumeView]) -> None:
        if scope.was_created or scope.exists:
            return
        source_id = self.source_id(scope.resource)
        row = await scope.context.get(source_id)
        if row is None or row.deleted_at or row.state in (DiskState.ERROR, DiskState.BROKEN):
            raise Failed(
                DiskReason.SOURCE_LOST, f"{source_id}, the source of the copy, cannot be read any more."
            )
        if row.state not in (DiskState.READY, DiskState.UPDATING):
            raise RetryLater(f"{source_id} is {row.state}", delay_seconds=POLL_SECONDS)

    async def keep_key(self, scope: VolumeScope[M, VolumeView]) -> None:
        if scope.was_created:
            await disk_keys(self._store, [scope.volume.id])
        elif not scope.exists:
            await ensure_key_of_copy(scope.context, self._store, self.source_id(scope.resource))

    async def create_volume(self, scope: VolumeScope[M, VolumeView]) -> None:
        if scope.was_created or scope.exists:
            await super().create_volume(scope)
            return
        source = await scope.context.get(self.source_id(scope.resource))
        async with _frozen(self._engine, await _machine_of(self._store, source)):
            await super().create_volume(scope)


SnapshotScope = VolumeScope[DiskSnapshot, VolumeView]


class SnapshotReconciler(CopyReconciler[DiskSnapshot]):
    kind = SNAPSHOT

    def source_id(self, resource: DiskSnapshot) -> str:
        return resource.spec.source_disk_id

    async def scope(self, context: Context) -> SnapshotScope:
        snapshot = wire.resource_message(context.resource)
        source = VolumeSource(resource_id=self.source_id(snapshot))
        volume = VolumeView(snapshot.metadata.id, snapshot.status.content_size_bytes, source)
        return VolumeScope(context, snapshot, volume, await self._engine.observe(snapshot.metadata.id))

    async def create_volume(self, scope: SnapshotScope) -> None:
        await super().create_volume(scope)
        stored = await engine_call(self._engine.stored_bytes(scope.volume.claim))
        scope.resource.status.storage_size_bytes = stored

    def status(self, scope: SnapshotScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status = SnapshotStatus()
        status.CopyFrom(scope.resource.status)
        status.state = SnapshotStatus.State.Value(state)
        return result.with_status(status, state, IDLE_RESYNC_SECONDS)


ImageScope = VolumeScope[Image, VolumeView]


class ImageReconciler(CopyReconciler[Image]):
    kind = IMAGE

    def __init__(self, engine: Engine, store: Store, imports: ImageImports) -> None:
        super().__init__(engine, store)
        self._imports = imports

    def source_id(self, resource: Image) -> str:
        return resource.spec.source_disk_id or resource.spec.source_disk_snapshot_id

    async def scope(self, context: Context) -> ImageScope:
        image = wire.resource_message(context.resource)
        source = VolumeSource(resource_id=self.source_id(image))
        size = LARGEST_STORED_BYTES if is_imported(image) else image.status.min_disk_size_bytes
        volume = VolumeView(image.metadata.id, size, source)
        is_file = is_public_image(image.metadata.id)
        observation = Observation() if is_file else await self._engine.observe(image.metadata.id)
        return VolumeScope(context, image, volume, observation)

    async def create_volume(self, scope: ImageScope) -> None:
        await super().create_volume(scope)
        stored = await engine_call(self._engine.stored_bytes(scope.volume.claim))
        scope.resource.status.storage_size_bytes = stored

    async def create_empty_volume(self, scope: ImageScope) -> None:
        await super(CopyReconciler, self).create_volume(scope)

    async def keep_new_key(self, scope: ImageScope) -> None:
        """Give a new image a key. One that an earlier release imported has none, and stays as it is."""
        if not scope.was_created:
            await ensure_key(scope.context, self._store)

    async def import_disk(self, scope: ImageScope) -> None:
        """Fill the volume from a bucket, once."""
        if scope.was_created:
            return
        status = scope.resource.status
        key = (await disk_keys(self._store, [scope.volume.id])).get(scope.volume.id, "")
        status.min_disk_size_bytes = await self._imports.finish(scope.resource, scope.observation, key)
        status.storage_size_bytes = await engine_call(self._engine.stored_bytes(scope.volume.claim))

    async def stop_import(self, scope: ImageScope) -> None:
        await self._imports.cancel(scope.volume.id)

    def steps(self, scope: ImageScope) -> Sequence[Step[ImageScope]]:
        if is_public_image(scope.volume.id):
            return ()
        if is_imported(scope.resource):
            return (
                Step("Keep its key", self.keep_new_key),
                Step("Create the volume", self.create_empty_volume),
                Step("Import the disk", self.import_disk),
            )
        return super().steps(scope)

    def delete_steps(self, scope: ImageScope) -> Sequence[Step[ImageScope]]:
        if is_public_image(scope.volume.id):
            return ()
        stop = (Step("Stop the import", self.stop_import),) if is_imported(scope.resource) else ()
        return (*stop, *super().delete_steps(scope))

    def status(self, scope: ImageScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        status = ImageStatus()
        status.CopyFrom(scope.resource.status)
        status.state = ImageStatus.State.Value(state)
        status.state_description = result.message
        status.reconciling = bool(result.waiting)
        return result.with_status(status, state, IDLE_RESYNC_SECONDS)


def is_imported(image: Image) -> bool:
    return image.spec.HasField("source_storage")


def _state(scope: SnapshotScope | ImageScope, result: ReconcileResult) -> str:
    if scope.is_deleting:
        return "DELETING"
    if result.error:
        return "ERROR"
    return "READY" if result.is_done else "CREATING"


async def _machine_of(store: Store, disk: Resource | None) -> str:
    """Return the id of the instance that may be writing this disk."""
    if disk is None:
        return ""
    holder = writer(await store.read(lambda tx: tx.reservations(attachment_namespace(disk.id))))
    owner = await store.read(lambda tx: tx.get(disk.owner_id)) if disk.owner_id else None
    return holder or (owner.id if owner is not None and owner.kind == INSTANCE else "")


@asynccontextmanager
async def _frozen(engine: Engine, instance_id: str) -> AsyncGenerator[None]:
    """Freeze the machine's writes meanwhile; nothing to do without an id or while it does not run."""
    if not instance_id:
        yield
        return
    observed = await engine.observe(namespace(instance_id))
    pod = observed.pod(pod_name(instance_id))
    if pod is None or pod.phase is not PodPhase.RUNNING:
        yield
        return
    machine = MachineControl(engine, instance_id)
    try:
        await machine.freeze()
        yield
    finally:
        with suppress(RetryLater):  # a machine that has ended meanwhile needs no thawing
            await machine.thaw()


EMULATED_FAMILIES = ("ubuntu24.04-driverless", "ubuntu24.04-cuda13.0", "ubuntu22.04-cuda12")
EMULATED_BYTES = 4 << 30
_BLOCK_BYTES = 512
"""The unit of st_blocks on every file system."""
ARCHITECTURES = {"amd64": "AMD64", "x86_64": "AMD64", "arm64": "ARM64", "aarch64": "ARM64"}


@dataclass(frozen=True)
class MachineImage:
    """An image as described by `image.json` in its folder."""

    name: str
    """The name of its folder, by which the engine finds it."""
    family: str
    title: str
    version: str
    architecture: str
    minimum_bytes: int
    """The smallest disk for it."""
    stored_bytes: int
    """Bytes of its file."""

    @property
    def id(self) -> str:
        return PUBLIC_IMAGE_ID_START + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def machine_images(home: Path) -> Iterator[MachineImage]:
    for record in sorted(home.glob("images/machine/*/image.json")):
        description = json.loads(record.read_text())
        yield MachineImage(
            name=record.parent.name,
            family=description["family"],
            title=description.get("title", description["name"]),
            version=str(description.get("version", "")),
            architecture=ARCHITECTURES.get(description.get("architecture", "amd64"), "AMD64"),
            minimum_bytes=int(description["minimum_bytes"]),
            stored_bytes=_stored_bytes(record.parent / description.get("disk", "disk.qcow2")),
        )


def _stored_bytes(file: Path) -> int:
    """Return what a file takes of the disk; 0 for one that is gone."""
    try:
        return file.stat().st_blocks * _BLOCK_BYTES
    except OSError:
        return 0


def emulated_images() -> Iterator[MachineImage]:
    """Yield images without a file for the families that clients of the emulator request."""
    for family in EMULATED_FAMILIES:
        title = f"No image: stands for family {family}"
        yield MachineImage(family, family, title, "1", "AMD64", EMULATED_BYTES, 0)


async def sync_public_images(store: Store, settings: "Settings", clock: Clock) -> None:
    images = list(emulated_images() if settings.emulator else machine_images(settings.home))

    def sync(tx: Transaction) -> None:
        known = {row.id: row for row in tx.list(IMAGE, parent_id=PUBLIC_IMAGES_PARENT)[0]}
        for image in images:
            _ensure(tx, image, known.pop(image.id, None), clock.now())
        for gone in known.values():
            tx.delete(gone.id)

    await store.write(sync)


def _ensure(tx: Transaction, image: MachineImage, known: Resource | None, now: datetime) -> None:
    spec = ImageSpec(
        description=image.title,
        image_family=image.family,
        image_family_human_readable=image.title,
        version=image.version,
        cpu_architecture=image.architecture,
    ).SerializeToString()
    status = ImageStatus(
        state=ImageStatus.State.Value("READY"),
        min_disk_size_bytes=image.minimum_bytes,
        storage_size_bytes=image.stored_bytes,
    ).SerializeToString()
    if known is not None and known.spec == spec:
        if known.status != status:
            tx.update(replace(known, status=status, updated_at=now))
        return
    if known is not None:
        tx.delete(known.id)
    tx.insert(
        Resource(
            id=image.id,
            kind=IMAGE,
            parent_id=PUBLIC_IMAGES_PARENT,
            name=image.name,
            created_at=now,
            updated_at=now,
            spec=spec,
            status=status,
            state="READY",
        )
    )
