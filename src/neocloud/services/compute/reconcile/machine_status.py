"""An instance's status, computed once at the end of every run from what the run saw. Pure.

While a machine runs it is RUNNING, whatever else of it is still being changed: `reconciling` says that.
"""

from typing import Any

from neocloud.core.reconcile.reconciler import IDLE_RESYNC_SECONDS, RESYNC_SECONDS, ReconcileResult
from neocloud.messages.nebius.compute.v1 import InstanceStatus
from neocloud.services.compute.reconcile.machine_scope import Addresses, MachineScope
from neocloud.services.compute.resources.instance import (
    InstanceState,
    InstanceStateEnum,
    attached_disks,
    hostname,
)


def machine_status(scope: MachineScope, result: ReconcileResult) -> ReconcileResult:
    state = _state(scope, result)
    status: Any = InstanceStatus()
    status.CopyFrom(scope.instance.status)
    status.state = InstanceStateEnum.Value(state)
    status.reconciling = bool(result.waiting)
    if scope.addresses is not None:
        del status.network_interfaces[:]
        _add_interface(status, scope, scope.addresses)
    if scope.disks:
        del status.disk_attachments[:]
        for (_, attached), disk in zip(attached_disks(scope.instance.spec), scope.disks, strict=False):
            is_managed = attached.WhichOneof("type") == "managed_disk"
            status.disk_attachments.add(id=disk.id, name=disk.name, is_managed=is_managed)
    resync = IDLE_RESYNC_SECONDS if state == InstanceState.STOPPED else RESYNC_SECONDS
    return result.with_status(status, state, resync)


def _state(scope: MachineScope, result: ReconcileResult) -> InstanceState:
    if scope.is_deleting:
        return InstanceState.DELETING
    if result.error is not None:
        return InstanceState.ERROR
    if not scope.should_run:
        return InstanceState.STOPPED if scope.pod is None else InstanceState.STOPPING
    if result.is_done or (scope.state == InstanceState.RUNNING and scope.is_up):
        return InstanceState.RUNNING
    return InstanceState.STARTING


def _add_interface(status: Any, scope: MachineScope, addresses: Addresses) -> None:
    desired, view = scope.desired_interface, addresses.interface
    shown = status.network_interfaces.add(
        index=0,
        name=desired.name,
        mac_address=view.mac,
        fqdn=f"{hostname(scope.id, scope.instance.spec)}.{view.domain}",
        security_groups=[{"id": group} for group in view.security_groups],
    )
    shown.ip_address.address = f"{view.address}/32"
    shown.ip_address.allocation_id = addresses.private.id
    if addresses.public is not None:
        shown.public_ip_address.address = f"{view.public_address}/32"
        shown.public_ip_address.allocation_id = addresses.public.id
        shown.public_ip_address.static = desired.public_ip_address.static
