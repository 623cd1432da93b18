"""Copying the volume of a disk that a machine may be writing: frozen meanwhile, so that the copy is whole."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from neocloud.core.reconcile.reconciler import Context, Failed, RetryLater
from neocloud.core.store.protocol import Resource, Store
from neocloud.engines.base import Engine, PodPhase
from neocloud.services.compute.reconcile.control import MachineControl
from neocloud.services.compute.reconcile.volumes import POLL_SECONDS, VolumeScope, make_volume
from neocloud.services.compute.resources.disk import DiskReason, DiskState, attachment_namespace, writer
from neocloud.services.compute.resources.instance import INSTANCE, namespace, pod_name


async def require_source(context: Context, source_id: str) -> None:
    """Raises unless the disk or snapshot is there and ready to be copied."""
    row = await context.get(source_id)
    if row is None or row.deleted_at or row.state in (DiskState.ERROR, DiskState.BROKEN):
        raise Failed(
            DiskReason.SOURCE_LOST, f"{source_id}, which it should be a copy of, cannot be read any more."
        )
    if row.state not in (DiskState.READY, DiskState.UPDATING):
        raise RetryLater(f"{source_id} is {row.state}", delay_seconds=POLL_SECONDS)


async def copy_volume(engine: Engine, store: Store, scope: VolumeScope, source_id: str) -> None:
    """Make the volume as a copy of the source's; once made, only see that it is there."""
    if scope.was_made or scope.is_there:
        await make_volume(engine, scope)
        return
    source = await scope.context.get(source_id)
    async with _at_rest(engine, await _machine_of(store, source)):
        await make_volume(engine, scope)


async def _machine_of(store: Store, disk: Resource | None) -> str:
    """The instance that may be writing this disk."""
    if disk is None:
        return ""
    holder = writer(await store.read(lambda tx: tx.reservations(attachment_namespace(disk.id))))
    owner = await store.read(lambda tx: tx.get(disk.owner_id)) if disk.owner_id else None
    return holder or (owner.id if owner is not None and owner.kind == INSTANCE else "")


@asynccontextmanager
async def _at_rest(engine: Engine, instance_id: str) -> AsyncIterator[None]:
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
