"""What other services call to attach something to a subnet.

An owner (an instance, a cluster) creates its addresses as children (`context.ensure_child` with
`private_address` or `public_address`) and reads them with `types.address_of(row)` as soon as they exist.
Any address, also one that a user created, is acquired with `assign`, and released with `unassign` or by the
deletion of its holder. The holder shows in the Allocation's status when it is read; no row stores it.
"""

from collections.abc import Iterable
from typing import Protocol

from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import AllocationSpec, SecurityGroupSpec, SecurityGroupStatus
from neocloud.services.vpc.types import assignment_namespace

_ASSIGNED = "assigned"


class Reservations(Protocol):
    """The part of a reconciler's Context that holds reservations for its resource."""

    async def reserve(self, namespace: str, candidates: Iterable[str]) -> str | None: ...

    async def release(self, namespace: str, value: str) -> None: ...


def private_address(subnet_id: str, address: str = "") -> AllocationSpec:
    """Return the spec of an Allocation of one address in the subnet: this one, or any if empty."""
    spec = AllocationSpec()
    spec.ipv4_private.subnet_id = subnet_id
    spec.ipv4_private.cidr = address
    return spec


def public_address(subnet_id: str) -> AllocationSpec:
    """Return the spec of an Allocation of one public address from the pools of the subnet's network."""
    spec = AllocationSpec()
    spec.ipv4_public.subnet_id = subnet_id
    return spec


async def assign(context: Reservations, allocation_id: str) -> bool:
    """Acquire the address for the context's resource; return False while another holds it. Idempotent."""
    return await context.reserve(assignment_namespace(allocation_id), [_ASSIGNED]) is not None


async def unassign(context: Reservations, allocation_id: str) -> None:
    """Release the address if the context's resource holds it. Deleting the resource releases it too."""
    await context.release(assignment_namespace(allocation_id), _ASSIGNED)


def default_security_group(groups: Iterable[Resource], network_id: str) -> Resource | None:
    """Return the group for interfaces that name none, among the rows of a project's security groups."""
    for row in groups:
        is_default = SecurityGroupStatus.FromString(row.status).default
        if is_default and SecurityGroupSpec.FromString(row.spec).network_id == network_id:
            return row
    return None
