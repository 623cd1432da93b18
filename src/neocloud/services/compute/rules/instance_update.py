"""Rules of changes of an instance. Pure.

While it runs, only labels, security groups, the public address, secondary disks, the size of disks and
`stopped` can change. Everything else needs another machine for the guest, so the instance must be stopped
first. A boot disk cannot be replaced.
"""

from collections.abc import Iterable

from neocloud.core import contract
from neocloud.core.kind import Violation
from neocloud.messages.nebius.compute.v1 import AttachedDiskSpec, DiskSpec, Instance, InstanceSpec
from neocloud.services.compute.types import InstanceState, InstanceStateEnum, attached_disks, size_bytes

_STOPPED_ONLY = (
    "resources",
    "cloud_init_user_data",
    "hostname",
    "filesystems",
    "preemptible",
    "spot_pricing_policy",
)
_OUTSIDE_OF_THE_GUEST = (
    "resources",
    "network_interfaces",
    "nvl_instance_group_id",
    "reservation_policy",
    "preemptible",
    "on_demand",
    "follows_spot_price",
    "spot_pricing_policy",
)
"""Fields that do not alter what runs in the guest."""


def change_violations(new: Instance, old: Instance) -> Iterable[Violation]:
    if _identity(new.spec.boot_disk) != _identity(old.spec.boot_disk):
        yield Violation(
            "spec.boot_disk", "cannot be detached or replaced; create another instance with that disk"
        )
    for name, before in _managed(old.spec).items():
        after = _managed(new.spec).get(name)
        if after is None:
            yield Violation(
                "spec.secondary_disks",
                f'managed disk "{name}" is deleted with its instance; only an existing disk can be detached',
            )
        elif size_bytes(after) < size_bytes(before):
            yield Violation("spec.secondary_disks", f'managed disk "{name}" cannot shrink')
    if len(new.spec.network_interfaces) != len(old.spec.network_interfaces):
        yield Violation("spec.network_interfaces", "cannot be added or removed")
    changed = [f"spec.{name}" for name in _STOPPED_ONLY if _differs(new.spec, old.spec, name)]
    state = InstanceStateEnum.Name(old.status.state)
    if state == InstanceState.RUNNING:
        yield from _attachment_violations(new.spec, old.spec)
    elif _disks(new.spec) != _disks(old.spec):
        changed.append("spec.secondary_disks")
    if changed and state not in (InstanceState.STOPPED, InstanceState.ERROR):
        raise contract.bad_state(
            new.metadata.id,
            f"{', '.join(changed)} can change only while the instance is stopped; it is {state}. "
            "Stop it, change it, start it.",
        )


def _attachment_violations(new: InstanceSpec, old: InstanceSpec) -> Iterable[Violation]:
    """A running machine takes and releases disks; one that stays is as it was."""
    before = {identity: (device, mode) for device, identity, mode in _disks(old)}
    for device, identity, mode in _disks(new):
        old_device, old_mode = before.get(identity, (device, mode))
        if device != old_device:
            yield Violation(
                "spec.secondary_disks",
                f'disk {identity[1]} is "{old_device}" in the guest and would become "{device}"; '
                f'give it the device_id "{old_device}", or stop the instance first',
            )
        if mode != old_mode:
            yield Violation(
                "spec.secondary_disks",
                f"the attach_mode of disk {identity[1]} cannot change while the instance runs; stop it first",
            )


def changes_what_runs(new: Instance, old: Instance) -> bool:
    """Return whether the guest would run something else, or run again. The size of the machine and of its
    disks, its network, its price and a stop do not change that.
    """
    return _what_runs(new.spec) != _what_runs(old.spec) or (old.spec.stopped and not new.spec.stopped)


def _what_runs(spec: InstanceSpec) -> InstanceSpec:
    found = InstanceSpec()
    found.CopyFrom(spec)
    for name in (*_OUTSIDE_OF_THE_GUEST, "stopped"):
        found.ClearField(name)
    for _, attached in attached_disks(found):
        disk = attached.managed_disk.spec if attached.WhichOneof("type") == "managed_disk" else None
        if disk is not None and (size := disk.WhichOneof("size")):
            disk.ClearField(size)
    return found


def _differs(new: InstanceSpec, old: InstanceSpec, field: str) -> bool:
    return (
        list(getattr(new, field)) != list(getattr(old, field))
        if field == "filesystems"
        else (getattr(new, field) != getattr(old, field))
    )


def _identity(attached: AttachedDiskSpec) -> tuple[str, str]:
    kind = attached.WhichOneof("type") or ""
    return kind, attached.existing_disk.id or attached.managed_disk.name


def _disks(spec: InstanceSpec) -> list[tuple[str, tuple[str, str], int]]:
    """Return the attached disks without their sizes."""
    return [(device, _identity(attached), attached.attach_mode) for device, attached in attached_disks(spec)]


def _managed(spec: InstanceSpec) -> dict[str, DiskSpec]:
    return {
        attached.managed_disk.name: attached.managed_disk.spec
        for _, attached in attached_disks(spec)
        if attached.WhichOneof("type") == "managed_disk"
    }
