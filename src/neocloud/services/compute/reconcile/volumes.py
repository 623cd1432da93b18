"""Steps that disks, snapshots and images share: make the volume, see that it is still there, take it away.

A volume that was there and is gone is an error, never made anew: an empty volume in its place would hide that
data was lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neocloud.core.reconcile.reconciler import Context, Failed, RetryLater
from neocloud.engines.base import Engine, EngineError, EngineUnavailable, Observation
from neocloud.services.compute.render import VolumeView, volume_objects, volume_removal
from neocloud.services.compute.resources.disk import DiskReason

LOOK_AGAIN_SECONDS = 60.0
ENGINE_RETRY_SECONDS = 2.0
POLL_SECONDS = 0.5


@dataclass
class VolumeScope:
    context: Context
    resource: Any
    """The message as stored."""
    volume: VolumeView
    observation: Observation
    has_source: bool = True
    """False while what it should be a copy of cannot be found."""
    attachments: Mapping[str, str] = field(default_factory=dict)
    """Of a disk: who has it, as claims."""

    @property
    def owner_id(self) -> str:
        return self.context.resource.owner_id

    @property
    def was_made(self) -> bool:
        """The volume was there once."""
        return self.context.resource.observed_version > 0

    @property
    def is_there(self) -> bool:
        return self.volume.claim in self.observation.others

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None


async def make_volume(engine: Engine, scope: VolumeScope) -> None:
    if scope.was_made and not scope.is_there:
        raise Failed(
            DiskReason.VOLUME_LOST,
            f"The volume {scope.volume.claim.name} is gone from the engine. Restore it from a copy, or delete"
            " the resource and make a new one.",
        )
    try:
        await engine.apply(volume_objects(scope.volume))
    except EngineUnavailable as error:
        raise RetryLater(str(error), delay_seconds=ENGINE_RETRY_SECONDS) from error
    except EngineError as error:
        raise Failed(DiskReason.ENGINE_REFUSED, str(error)) from error


async def remove_volume(engine: Engine, scope: VolumeScope) -> None:
    try:
        await engine.remove(volume_removal(scope.volume))
    except EngineError as error:
        raise RetryLater(str(error), delay_seconds=ENGINE_RETRY_SECONDS) from error
