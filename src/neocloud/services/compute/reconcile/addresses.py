"""The addresses of an instance: its own allocations, or those that its spec names.

The interface shows in the status when all of its addresses exist. An address is assigned before it is used,
so no two instances answer to the same address.
"""

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import AllocationSpec, SubnetSpec, SubnetStatus
from neocloud.services.compute.reconcile.machine_scope import Addresses, MachineScope
from neocloud.services.compute.render import InterfaceView
from neocloud.services.compute.types import InstanceReason
from neocloud.services.vpc.public import (
    default_security_group,
    hold_address,
    interface_of,
    own_address,
    private_address,
    public_address,
    unassign,
)
from neocloud.services.vpc.types import (
    ALLOCATION,
    SECURITY_GROUP,
    address_of,
    block_of,
    domain_of,
)


async def find_addresses(scope: MachineScope) -> Addresses:
    """Find the instance's addresses and set them in the scope. Raises RetryLater until all exist."""
    desired = scope.desired_interface
    subnet = await scope.context.get(desired.subnet_id)
    if subnet is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Subnet {desired.subnet_id} is gone.")
    private = await _allocation(
        scope,
        desired.ip_address.allocation_id,
        f"{scope.id}-{desired.name}",
        private_address(desired.subnet_id),
    )
    public = None
    if desired.HasField("public_ip_address"):
        given_id, spec = desired.public_ip_address.allocation_id, public_address(desired.subnet_id)
        public = await _allocation(scope, given_id, _public_name(scope), spec)
    scope.addresses = Addresses(await _interface(scope, subnet, private, public), private, public)
    return scope.addresses


async def release_public_address(scope: MachineScope) -> None:
    """Release a public address that the spec no longer has, after the machine has stopped answering to it."""
    public = scope.addresses.public if scope.addresses else None
    kept = public.id if public else ""
    for shown in scope.instance.status.network_interfaces:
        held = shown.public_ip_address.allocation_id
        if held and held != kept:
            await unassign(scope.context, held)
    own = await scope.context.find(ALLOCATION, scope.instance.metadata.parent_id, _public_name(scope))
    if own is not None and own.id != kept:
        await scope.context.delete_child(own.id)


async def _allocation(scope: MachineScope, given_id: str, name: str, spec: AllocationSpec) -> Resource:
    if not given_id:
        return await own_address(scope.context, scope.instance.metadata.parent_id, name, spec)
    row = await scope.context.get(given_id)
    if row is None or row.deleted_at:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Allocation {given_id} is gone; name another.")
    await hold_address(scope.context, row)
    return row


async def _interface(
    scope: MachineScope, subnet: Resource, private: Resource, public: Resource | None
) -> InterfaceView:
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    network = await scope.context.get(network_id)
    address = address_of(private)
    if network is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Network {network_id} is gone.")
    try:
        block = block_of(SubnetStatus.FromString(subnet.status), address)
    except StopIteration:
        raise RetryLater(
            f"subnet {subnet.id} does not hold {address}", delay_seconds=CHILD_POLL_SECONDS
        ) from None
    groups = await _security_groups(scope, network_id)
    return InterfaceView(
        interface_of(subnet, private, public, mac=mac_of(scope.id), security_groups=groups),
        prefix_length=block.prefix_length,
        gateway=str(block.gateway),
        domain=domain_of(network.name),
    )


async def _security_groups(scope: MachineScope, network_id: str) -> tuple[str, ...]:
    named = tuple(group.id for group in scope.desired_interface.security_groups)
    if named:
        return named
    rows = await scope.context.list(SECURITY_GROUP, scope.instance.metadata.parent_id)
    default = default_security_group(rows, network_id)
    return (default.id,) if default else ()


def _public_name(scope: MachineScope) -> str:
    return f"{scope.id}-{scope.desired_interface.name}-public"
