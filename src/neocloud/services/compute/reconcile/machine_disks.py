"""The disks of a machine that runs: attached, grown, limited and detached.

A disk is released, so that another machine may have it, in this order: the guest removes the device, QEMU
closes the file, the engine takes the volume from the pod, which it refuses while a program uses it, and the
reservation is dropped. A guest that keeps a disk keeps the reservation, too. The operation ends with an
error after RELEASE_SECONDS, the guest is requested again every few seconds, and a stop releases the disk.
"""

from collections.abc import Set
from dataclasses import replace
from datetime import datetime

from neocloud.core.reconcile.reconciler import RESYNC_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.compute.reconcile.attachments import disk_views
from neocloud.services.compute.reconcile.machine_scope import (
    MachineControl,
    MachineScope,
    change_runtime_state,
    check_unchanged,
)
from neocloud.services.compute.render import DiskView, desired_disk
from neocloud.services.compute.started_pod import can_attach
from neocloud.services.compute.types import OVERDUE, InstanceReason, attachment_namespace

RELEASE_SECONDS = 60.0
"""The time that a guest has to release a disk before the operation ends with an error."""


async def attach_disks(scope: MachineScope, control: MachineControl) -> None:
    """Attach the disks of the spec that the guest does not have."""
    missing = [disk for disk in disk_views(scope) if disk.id not in scope.guest.disk_sizes]
    started = scope.runtime.pod_spec
    if missing and not can_attach(started):
        raise RetryLater(
            "this machine was started by an earlier release: disks cannot be attached while it runs; stop it "
            "and start it",
            delay_seconds=RESYNC_SECONDS,
        )
    for disk in missing:
        await control.attach_disk(desired_disk(disk, started))
    if missing:
        scope.guest = await control.status()


async def adjust_disks(scope: MachineScope, control: MachineControl, store: Store) -> None:
    """Report volumes that the engine has grown to the guest, and change the limits with the size."""
    enforced = dict(scope.guest.disk_limits)
    for disk in disk_views(scope):
        known = scope.guest.disk_sizes.get(disk.id)
        if not disk.is_read_only and known is not None and known < disk.size_bytes:
            await control.resize_disk(disk.id, disk.size_bytes)
        if disk.limits is not None and enforced.get(disk.id, disk.limits) != disk.limits:
            await control.limit_disk(disk.id, disk.limits)
            enforced[disk.id] = disk.limits
    if enforced != scope.runtime.disk_limits:
        await change_runtime_state(store, scope, lambda runtime: replace(runtime, disk_limits=enforced))


def detaching_views(scope: MachineScope) -> tuple[DiskView, ...]:
    """Return the disks that the guest is to release; their sizes do not matter any more."""
    return tuple(DiskView(disk_id, "", 0, is_only_read) for disk_id, is_only_read in scope.detaching.items())


async def close_disks(scope: MachineScope, control: MachineControl) -> set[str]:
    """Close the disks that the spec no longer has; return those that the guest keeps."""
    return {disk_id for disk_id in scope.detaching if not await control.detach_disk(disk_id)}


async def release_disks(scope: MachineScope, store: Store, disk_ids: Set[str]) -> None:
    """Let other machines have these disks, which this one no longer uses."""
    if not disk_ids:
        return
    spaces = {attachment_namespace(disk_id) for disk_id in disk_ids}

    def release(tx: Transaction) -> None:
        check_unchanged(tx, scope)  # a disk may have been attached again
        for space, value in tx.held_by(scope.id):
            if space in spaces:
                tx.release(space, value)

    await store.write(release)
    scope.released |= disk_ids
    for disk_id in disk_ids:
        del scope.detaching[disk_id]


async def report_kept(scope: MachineScope, store: Store, kept: Set[str]) -> None:
    """Raise RetryLater while the guest may still release the disks that it keeps, then Failed, once."""
    known, now = scope.runtime.detaching, scope.context.now
    since = {disk_id: known.get(disk_id, now.isoformat()) for disk_id in kept}
    overdue = {disk_id for disk_id, begun in since.items() if begun != OVERDUE and _is_over(begun, now)}
    since |= dict.fromkeys(overdue, OVERDUE)
    if since != known:
        await change_runtime_state(store, scope, lambda runtime: replace(runtime, detaching=since))
    names = ", ".join(sorted(scope.detaching_names.get(disk_id) or disk_id for disk_id in kept))
    if overdue:
        raise Failed(
            InstanceReason.DISK_NOT_RELEASED,
            f"The guest has not released {names} within {RELEASE_SECONDS:g} s. It stays attached until the "
            "guest releases it: unmount it there, or stop the machine.",
        )
    if set(since.values()) - {OVERDUE}:
        raise RetryLater(f"the guest has not released {names}", delay_seconds=RETRY_SECONDS)


def _is_over(begun: str, now: datetime) -> bool:
    return (now - datetime.fromisoformat(begun)).total_seconds() > RELEASE_SECONDS
