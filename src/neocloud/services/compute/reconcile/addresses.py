"""The addresses of an instance: allocations of its own, or those that its spec names.

An interface is known when all of its addresses are; until then nothing of it is shown. An address is taken
before it is used, so that no two instances answer to one.
"""

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.interface import mac_of
from neocloud.services.compute.reconcile.machine_scope import MachineScope
from neocloud.services.compute.render import InterfaceView
from neocloud.services.compute.resources.instance import InstanceReason
from neocloud.services.vpc.resources import (
    ALLOCATION,
    SECURITY_GROUP,
    SubnetSpec,
    SubnetStatus,
    address_of,
    assign,
    block_of,
    default_security_group,
    domain_of,
    network_namespace,
    private_address,
    public_address,
    unassign,
)


async def find_addresses(scope: MachineScope) -> None:
    """Set the scope's allocations and interface. Raises RetryLater until all addresses are there."""
    wish = scope.wished_interface
    subnet = await scope.context.get(wish.subnet_id)
    if subnet is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Subnet {wish.subnet_id} is gone.")
    scope.private_allocation = await _allocation(
        scope, wish.ip_address.allocation_id, f"{scope.id}-{wish.name}", private_address(wish.subnet_id)
    )
    if wish.HasField("public_ip_address"):
        scope.public_allocation = await _allocation(
            scope,
            wish.public_ip_address.allocation_id,
            _public_name(scope),
            public_address(wish.subnet_id),
        )
    scope.interface = await _interface(scope, subnet)


async def let_public_address_go(scope: MachineScope) -> None:
    """One that the spec asks for no longer; to be called when the machine does not answer to it any more."""
    kept = scope.public_allocation.id if scope.public_allocation else ""
    for shown in scope.instance.status.network_interfaces:
        held = shown.public_ip_address.allocation_id
        if held and held != kept:
            await unassign(scope.context, held)
    own = await scope.context.find(ALLOCATION, scope.instance.metadata.parent_id, _public_name(scope))
    if own is not None and own.id != kept:
        await scope.context.delete_child(own.id)


async def _allocation(scope: MachineScope, given_id: str, name: str, spec: object) -> Resource:
    if given_id:
        row = await scope.context.get(given_id)
        if row is None or row.deleted_at:
            raise Failed(InstanceReason.ADDRESS_FAILED, f"Allocation {given_id} is gone; name another.")
    else:
        row = await scope.context.ensure_child(
            ALLOCATION,
            name=name,
            parent_id=scope.instance.metadata.parent_id,
            spec=spec,  # pyright: ignore[reportArgumentType]
            labels={},
        )
    if not address_of(row):
        raise RetryLater(f"allocation {row.id} has no address yet", delay_seconds=CHILD_POLL_SECONDS)
    if not await assign(scope.context, row.id):
        raise RetryLater(
            f"{address_of(row)} ({row.id}) is in use by another", delay_seconds=CHILD_POLL_SECONDS
        )
    return row


async def _interface(scope: MachineScope, subnet: Resource) -> InterfaceView:
    assert scope.private_allocation is not None, "found just before"
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    network = await scope.context.get(network_id)
    address = address_of(scope.private_allocation)
    if network is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Network {network_id} is gone.")
    try:
        block = block_of(SubnetStatus.FromString(subnet.status), address)
    except StopIteration:
        raise RetryLater(
            f"subnet {subnet.id} does not hold {address}", delay_seconds=CHILD_POLL_SECONDS
        ) from None
    return InterfaceView(
        network=network_namespace(network_id),
        subnet=subnet.id,
        address=address,
        prefix_length=block.prefix_length,
        gateway=str(block.gateway),
        mac=mac_of(scope.id),
        domain=domain_of(network.name),
        security_groups=await _security_groups(scope, network_id),
        public_address=address_of(scope.public_allocation) if scope.public_allocation else "",
    )


async def _security_groups(scope: MachineScope, network_id: str) -> tuple[str, ...]:
    named = tuple(group.id for group in scope.wished_interface.security_groups)
    if named:
        return named
    rows = await scope.context.list(SECURITY_GROUP, scope.instance.metadata.parent_id)
    default = default_security_group(rows, network_id)
    return (default.id,) if default else ()


def _public_name(scope: MachineScope) -> str:
    return f"{scope.id}-{scope.wished_interface.name}-public"
