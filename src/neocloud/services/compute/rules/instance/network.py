"""The network interface: subnet, addresses, security groups, all of the same project and network. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import AllocationSpec, AllocationStatus, SecurityGroupSpec, SubnetSpec
from neocloud.services.compute.rules.references import find, missing
from neocloud.services.vpc.resources import ALLOCATION, SECURITY_GROUP, SUBNET, assignment_namespace

INTERFACE = "spec.network_interfaces[0]"


def interface_violations(new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
    interfaces, parent_id = new.spec.network_interfaces, new.metadata.parent_id
    if len(interfaces) > 1:
        yield Violation("spec.network_interfaces", "one interface is offered here; leave the others out")
        return
    for interface in interfaces:
        subnet = find(world, SUBNET, interface.subnet_id, parent_id)
        if subnet is None and old is None:
            yield missing(f"{INTERFACE}.subnet_id", SUBNET, interface.subnet_id)
        if interface.aliases:
            yield Violation(f"{INTERFACE}.aliases", "address aliases are not offered here; leave them out")
        yield from _allocation_violations(new, interface, subnet, world)
        yield from _security_group_violations(interface, subnet, parent_id, world)


def _allocation_violations(
    new: Any, interface: Any, subnet: Resource | None, world: ResourceReader
) -> Iterable[Violation]:
    asked = (
        ("ip_address", interface.ip_address.allocation_id, "ipv4_private"),
        ("public_ip_address", interface.public_ip_address.allocation_id, "ipv4_public"),
    )
    for name, identifier, kind in asked:
        if not identifier:
            continue
        field = f"{INTERFACE}.{name}.allocation_id"
        row = find(world, ALLOCATION, identifier, new.metadata.parent_id)
        if row is None or (row.owner_id and row.owner_id != new.metadata.id):
            yield missing(field, ALLOCATION, identifier)
            continue
        spec = AllocationSpec.FromString(row.spec)
        holder = next(iter(world.reservations(assignment_namespace(identifier)).values()), "")
        if spec.WhichOneof("ip_spec") != kind:
            yield Violation(field, f"{identifier} is no {kind.removeprefix('ipv4_')} address")
        elif holder and holder != new.metadata.id:
            yield Violation(field, f"{identifier} is in use by {holder}; take it from there first")
        elif kind == "ipv4_private" and subnet is not None and _subnet_of(row) not in ("", subnet.id):
            yield Violation(field, f"{identifier} is an address of another subnet")


def _subnet_of(allocation: Resource) -> str:
    details = AllocationStatus.FromString(allocation.status).details
    return details.subnet_id or AllocationSpec.FromString(allocation.spec).ipv4_private.subnet_id


def _security_group_violations(
    interface: Any, subnet: Resource | None, parent_id: str, world: ResourceReader
) -> Iterable[Violation]:
    for index, group in enumerate(interface.security_groups):
        field = f"{INTERFACE}.security_groups[{index}].id"
        row = find(world, SECURITY_GROUP, group.id, parent_id)
        if row is None:
            yield missing(field, SECURITY_GROUP, group.id)
        elif subnet is not None:
            network = SubnetSpec.FromString(subnet.spec).network_id
            if SecurityGroupSpec.FromString(row.spec).network_id != network:
                yield Violation(field, f"{group.id} belongs to another network than the subnet")
