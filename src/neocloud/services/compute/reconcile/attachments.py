"""The disks and filesystems of an instance: its own are created, others must be ready."""

from typing import Any

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.compute.v1 import DiskStatus
from neocloud.services.compute.reconcile.machine_scope import MachineScope
from neocloud.services.compute.render import DiskView, SharedView
from neocloud.services.compute.resources.disk import DISK, DiskState
from neocloud.services.compute.resources.filesystem import FilesystemState, claim_reference
from neocloud.services.compute.resources.instance import InstanceReason, attached_disks, is_read_only

_FAILED = frozenset({DiskState.ERROR, DiskState.BROKEN})


async def ensure_disks(scope: MachineScope) -> None:
    """Create the managed disks and set all disks in the scope; a machine that is to run needs them ready."""
    scope.disks = []
    for _, attached in attached_disks(scope.instance.spec):
        if attached.WhichOneof("type") == "managed_disk":
            managed = attached.managed_disk
            row = await scope.context.ensure_child(
                DISK,
                name=managed.name,
                parent_id=scope.instance.metadata.parent_id,
                spec=managed.spec,
                labels=dict(managed.labels),
            )
        else:
            row = await scope.context.get(attached.existing_disk.id)
        if row is None:
            raise Failed(InstanceReason.DISK_FAILED, f"Disk {attached.existing_disk.id} is gone.")
        scope.disks.append(row)
    if scope.should_run:
        await require_ready(scope)


async def require_ready(scope: MachineScope) -> None:
    """Raise RetryLater until everything attached can be used."""
    for disk in scope.disks:
        if disk.state in _FAILED:
            why = DiskStatus.FromString(disk.status).state_description
            raise Failed(InstanceReason.DISK_FAILED, f"Disk {disk.name or disk.id} has failed: {why}")
        if not DiskStatus.FromString(disk.status).size_bytes:
            raise RetryLater(f"disk {disk.name or disk.id} is {disk.state}", delay_seconds=CHILD_POLL_SECONDS)
    for attached in scope.instance.spec.filesystems:
        row = await scope.context.get(attached.existing_filesystem.id)
        if row is None or row.state == FilesystemState.ERROR:
            raise Failed(
                InstanceReason.FILESYSTEM_FAILED,
                f"Filesystem {attached.existing_filesystem.id} is gone or has failed.",
            )
        if row.state == FilesystemState.CREATING:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )


def disk_views(scope: MachineScope) -> tuple[DiskView, ...]:
    pairs = zip(attached_disks(scope.instance.spec), scope.disks, strict=True)
    return tuple(
        DiskView(row.id, place, _size(row), is_read_only=is_read_only(attached))
        for (place, attached), row in pairs
    )


async def shared_views(scope: MachineScope) -> tuple[SharedView, ...]:
    found = []
    for attached in scope.instance.spec.filesystems:
        row: Any = await scope.context.get(attached.existing_filesystem.id)
        found.append(SharedView(claim_reference(row), attached.mount_tag, is_read_only(attached)))
    return tuple(found)


def _size(disk: Resource) -> int:
    return DiskStatus.FromString(disk.status).size_bytes
