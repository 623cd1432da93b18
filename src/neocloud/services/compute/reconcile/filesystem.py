"""How a filesystem becomes a volume of the engine, and how it goes.

A volume that was there and is gone is an error, never made anew: an empty volume in its place would hide that
data was lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neocloud.core.reconcile.reconciler import Context, Failed, ReconcileResult, RetryLater, Step
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, EngineError, EngineUnavailable, Observation
from neocloud.services.compute.render import FilesystemView, removal, render
from neocloud.services.compute.resources import (
    BLOCK_SIZE_BYTES,
    FILESYSTEM,
    FilesystemReason,
    FilesystemSpec,
    FilesystemState,
    FilesystemStatus,
    size_bytes,
)
from neocloud.services.compute.resources.disk import attachment_namespace
from neocloud.services.compute.resources.filesystem import attached

LOOK_AGAIN_SECONDS = 60.0
ENGINE_RETRY_SECONDS = 2.0


@dataclass
class FilesystemScope:
    view: FilesystemView
    observation: Observation
    was_made: bool
    """The volume was there once."""
    is_deleting: bool
    attachments: Mapping[str, str]
    """Who has attached it, as claims."""

    @property
    def has_claim(self) -> bool:
        return self.view.claim in self.observation.others

    @property
    def lacks_namespace(self) -> bool:
        """It lies in its owner's namespace, of which the engine knows nothing."""
        return not self.view.has_own_namespace and self.observation == Observation()


class FilesystemReconciler:
    kind = FILESYSTEM

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    async def scope(self, context: Context) -> FilesystemScope:
        row = context.resource
        spec = FilesystemSpec.FromString(row.spec)
        view = FilesystemView(row.id, size_bytes(spec), row.labels, row.owner_id)
        return FilesystemScope(
            view=view,
            observation=await self._engine.observe(view.namespace),
            was_made=row.observed_version > 0,
            is_deleting=row.deleted_at is not None,
            attachments=await self._store.read(lambda tx: tx.reservations(attachment_namespace(row.id))),
        )

    def steps(self, scope: FilesystemScope) -> Sequence[Step]:
        return (Step("Make the volume", self._ensure_volume),)

    def delete_steps(self, scope: FilesystemScope) -> Sequence[Step]:
        return (Step("Remove the volume", self._remove_volume),)

    def status(self, scope: FilesystemScope, result: ReconcileResult) -> ReconcileResult:
        state = _state(scope, result)
        is_ready = state == FilesystemState.READY
        status: Any = FilesystemStatus(
            state=FilesystemStatus.State.Value(state),
            state_description=result.message,
            size_bytes=scope.view.size_bytes,
            block_size_bytes=BLOCK_SIZE_BYTES,
            reconciling=not is_ready and state != FilesystemState.ERROR,
            read_write_attachments=attached(scope.attachments, is_read_only=False),
            read_only_attachments=attached(scope.attachments, is_read_only=True),
        )
        return result.with_status(status, state, resync_seconds=LOOK_AGAIN_SECONDS)

    async def _ensure_volume(self, scope: FilesystemScope) -> None:
        if scope.was_made and not scope.has_claim:
            raise Failed(
                FilesystemReason.VOLUME_LOST,
                f"The volume {scope.view.claim.name} is gone from the engine. Restore it from a copy, or"
                " delete the filesystem and make a new one.",
            )
        if scope.lacks_namespace:
            raise RetryLater(f"Namespace {scope.view.namespace} of its owner is not there yet")
        try:
            await self._engine.apply(render(scope.view))
        except EngineUnavailable as error:
            raise RetryLater(str(error), delay_seconds=ENGINE_RETRY_SECONDS) from error
        except EngineError as error:
            raise Failed(FilesystemReason.ENGINE_REFUSED, str(error)) from error

    async def _remove_volume(self, scope: FilesystemScope) -> None:
        try:
            await self._engine.remove(removal(scope.view))
        except EngineError as error:
            raise RetryLater(str(error), delay_seconds=ENGINE_RETRY_SECONDS) from error


def _state(scope: FilesystemScope, result: ReconcileResult) -> FilesystemState:
    if scope.is_deleting:
        return FilesystemState.DELETING
    if result.error:
        return FilesystemState.ERROR
    if result.is_done:
        return FilesystemState.READY
    return FilesystemState.UPDATING if scope.was_made else FilesystemState.CREATING
