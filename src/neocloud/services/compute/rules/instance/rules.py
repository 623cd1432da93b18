"""What is legal for an instance, put together; and the disks it takes in the transaction that creates it."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.capacity import CapacityUse, Rows
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.services.compute.resources import (
    GIB,
    Demand,
    check_capacity,
    filesystem,
    instance_demands,
    preset,
)
from neocloud.services.compute.resources.disk import attachment_namespace, attachment_value, readers, writer
from neocloud.services.compute.resources.instance import INSTANCE, InstanceState, existing_disks, is_read_only
from neocloud.services.compute.rules.instance.change import change_violations, changes_what_runs
from neocloud.services.compute.rules.instance.network import interface_violations
from neocloud.services.compute.rules.instance.pricing import name_policy, pricing_violations
from neocloud.services.compute.rules.instance.shape import shape_violations
from neocloud.services.compute.rules.instance.storage import storage_violations
from neocloud.services.compute.rules.user_data import user_data_violations

_WITHOUT_CAPACITY = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    for row in rows[INSTANCE]:
        if row.state not in _WITHOUT_CAPACITY:
            for demand in instance_demands(InstanceSpec.FromString(row.spec)):
                yield row.id, demand


CAPACITY = (CapacityUse((INSTANCE,), _held),)


class InstanceRules(Rules):
    def request_violations(self, request: Any) -> Iterable[Violation]:
        return user_data_violations(request.spec.cloud_init_user_data)

    def violations(self, new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
        found = [
            *shape_violations(new, old, world),
            *pricing_violations(new, old, world),
            *storage_violations(new, old, world),
            *interface_violations(new, old, world),
            *(change_violations(new, old) if old is not None else ()),
        ]
        if not found:
            held = instance_demands(old.spec) if old is not None else []
            check_capacity(world, new.metadata.id, instance_demands(new.spec), held)
        return found

    def complete(self, new: Any, old: Any | None, world: ResourceReader) -> None:
        """Take the disks, so that of two instances that want one disk only one is created."""
        instance_id = new.metadata.id
        wanted = existing_disks(new.spec)
        for disk_id in existing_disks(old.spec) if old is not None else ():
            if disk_id not in wanted:
                _release(world, disk_id, instance_id)
        for disk_id, only_reads in wanted.items():
            _acquire(world, disk_id, instance_id, is_read_only=only_reads)
        _share(world, new, old)
        name_policy(new, old, world)

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        """Of what exists, whether it runs or not; its disks are counted as disks."""
        shape = preset(resource.spec.resources.platform, resource.spec.resources.preset)
        if shape.gpus:
            return {
                "compute.instance.count": 1,
                f"compute.instance.gpu.{shape.gpu_type or 'any'}": shape.gpus,
            }
        memory = shape.memory_gib * GIB
        return {
            "compute.instance.count": 1,
            "compute.instance.non-gpu.vcpu": shape.vcpu,
            "compute.instance.non-gpu.memory": memory,
        }

    def changes_what_runs(self, new: Any, old: Any) -> bool:
        return changes_what_runs(new, old)

    def dependents(self, resource: Any) -> Iterable[str]:
        """What shows who uses it."""
        yield from existing_disks(resource.spec)
        for attached in resource.spec.filesystems:
            yield attached.existing_filesystem.id
        for interface in resource.status.network_interfaces:
            yield interface.ip_address.allocation_id
            yield interface.public_ip_address.allocation_id


def _acquire(world: ResourceReader, disk_id: str, instance_id: str, *, is_read_only: bool) -> None:
    namespace = attachment_namespace(disk_id)
    claims = world.reservations(namespace)
    others = {writer(claims), *(() if is_read_only else readers(claims))} - {"", instance_id}
    value = attachment_value(instance_id, is_read_only=is_read_only)
    if others or not world.reserve(namespace, value, instance_id):
        holder = ", ".join(sorted(others)) or "another instance"
        raise contract.bad_state(
            disk_id,
            f"Disk {disk_id} is attached to {holder}. A disk is written by one instance at a time: "
            "detach it there first, or attach it for reading only.",
        )


def _share(world: ResourceReader, new: Any, old: Any | None) -> None:
    """Filesystems may be attached to many; the claim says to whom."""
    instance_id = new.metadata.id
    for attached in old.spec.filesystems if old is not None else ():
        _release(world, attached.existing_filesystem.id, instance_id)
    for attached in new.spec.filesystems:
        value = filesystem.attachment_value(instance_id, is_read_only=is_read_only(attached))
        world.reserve(attachment_namespace(attached.existing_filesystem.id), value, instance_id)


def _release(world: ResourceReader, storage_id: str, instance_id: str) -> None:
    namespace = attachment_namespace(storage_id)
    for value, holder in world.reservations(namespace).items():
        if holder == instance_id:
            world.release(namespace, value)
