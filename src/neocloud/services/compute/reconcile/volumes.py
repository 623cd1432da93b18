"""What disks, filesystems, snapshots and images share: make the volume, check that it still exists, remove
it.

A volume that existed and is gone is an error and never made again: an empty volume in its place would hide
that data was lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neocloud.core.reconcile.reconciler import Context, Failed, ReconcileResult, Step
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, EngineError, Observation, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import Manifest
from neocloud.services.compute.render.storage import volume_objects, volume_removal
from neocloud.services.compute.types import DiskReason, FilesystemReason


@dataclass(frozen=True)
class VolumeScope:
    context: Context
    resource: Any
    """The message as stored."""
    volume: Any
    """A VolumeView, or the FilesystemView of a filesystem."""
    observation: Observation
    has_source: bool = True
    """False while the source to copy cannot be found."""
    attachments: Mapping[str, str] = field(default_factory=dict)
    """Of a disk or filesystem: the ids of the resources that attach it, by reserved value."""

    @property
    def owner_id(self) -> str:
        return self.context.resource.owner_id

    @property
    def was_made(self) -> bool:
        """Whether the volume existed once."""
        return self.context.resource.observed_version > 0

    @property
    def exists(self) -> bool:
        return self.volume.claim in self.observation.others

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None


class VolumeReconciler:
    """Base of the reconcilers whose resource is one volume. A subclass says which volume and which status."""

    kind = ""
    reasons: type[DiskReason] | type[FilesystemReason] = DiskReason

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def scope(self, context: Context) -> VolumeScope:
        raise NotImplementedError

    def steps(self, scope: VolumeScope) -> Sequence[Step]:
        return (
            Step("Wait for the source", self.wait_for_source),
            Step("Make the volume", self.make_volume),
        )

    def delete_steps(self, scope: VolumeScope) -> Sequence[Step]:
        return (Step("Remove the volume", self.remove_volume),)

    def status(self, scope: VolumeScope, result: ReconcileResult) -> ReconcileResult:
        raise NotImplementedError

    async def wait_for_source(self, scope: VolumeScope) -> None:
        """Raise RetryLater until the source can be copied; only while there is no volume yet."""

    async def make_volume(self, scope: VolumeScope) -> None:
        if scope.was_made and not scope.exists:
            raise Failed(
                self.reasons.VOLUME_LOST,
                f"The volume {scope.volume.claim.name} is gone from the engine. Restore it from a copy, or"
                " delete the resource and make a new one.",
            )
        refused = {EngineError: self.reasons.ENGINE_REFUSED}
        await engine_call(self._engine.apply(self.objects(scope.volume)), failures=refused)

    async def remove_volume(self, scope: VolumeScope) -> None:
        await engine_call(self._engine.remove(self.references(scope.volume)))

    def objects(self, volume: Any) -> Sequence[Manifest]:
        return volume_objects(volume)

    def references(self, volume: Any) -> Sequence[Reference]:
        return volume_removal(volume)
