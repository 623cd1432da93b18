"""The kinds of vpc with their id prefixes, states and error reasons, what their statuses say, and what
other services call to attach something to a subnet.

An owner (an instance, a cluster) has its addresses as children (`own_address`). Any address, also one that a
user created, is acquired with `hold_address`, and released with `unassign` or by the deletion of its holder.
The holder shows in the Allocation's status when it is read; no row stores it. `interface_of` makes of
addresses the interface of a pod; `own_security_group` opens it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Protocol

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Context, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.manifest import Interface
from neocloud.messages.nebius.vpc.v1 import (
    AllocationSpec,
    AllocationStatus,
    RuleProtocol,
    RuleType,
    SecurityGroupSpec,
    SecurityGroupStatus,
    SecurityRuleSpec,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess

NETWORK = "nebius.vpc.v1.Network"
SUBNET = "nebius.vpc.v1.Subnet"
POOL = "nebius.vpc.v1.Pool"
ALLOCATION = "nebius.vpc.v1.Allocation"
ROUTE_TABLE = "nebius.vpc.v1.RouteTable"
ROUTE = "nebius.vpc.v1.Route"
SECURITY_GROUP = "nebius.vpc.v1.SecurityGroup"
SECURITY_RULE = "nebius.vpc.v1.SecurityRule"


NETWORK_ID_PREFIX = "vpcnetwork"
SUBNET_ID_PREFIX = "vpcsubnet"
POOL_ID_PREFIX = "vpcpool"
SCOPE_ID_PREFIX = "vpcscope"
ALLOCATION_ID_PREFIX = "vpcallocation"
ROUTE_TABLE_ID_PREFIX = "vpcroutetable"
ROUTE_ID_PREFIX = "vpcroute"
SECURITY_GROUP_ID_PREFIX = "vpcsecuritygroup"
SECURITY_RULE_ID_PREFIX = "vpcsecurityrule"

SMALLEST_SUBNET_PREFIX = 29


class VpcState(StrEnum):
    """States of vpc's resources; not every kind has all of them."""

    CREATING = "CREATING"
    READY = "READY"
    ALLOCATED = "ALLOCATED"
    ASSIGNED = "ASSIGNED"
    DELETING = "DELETING"


class NetworkReason(StrEnum):
    """Why a network is not applied; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"


@dataclass(frozen=True)
class SubnetBlock:
    """One range of a subnet, with what an interface in it is configured with."""

    cidr: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        return self.cidr[1]

    @property
    def prefix_length(self) -> int:
        return self.cidr.prefixlen

    @property
    def reserved(self) -> frozenset[IPv4Address]:
        """Return the addresses that are never allocated: of the network, the gateway and broadcast."""
        return frozenset({self.cidr[0], self.cidr[1], self.cidr[-1]})


def subnet_blocks(status: SubnetStatus) -> tuple[SubnetBlock, ...]:
    """Return the ranges of a subnet, from its status."""
    cidrs = [cidr for pool in status.ipv4_private_pools for cidr in pool.cidrs]
    return tuple(SubnetBlock(IPv4Network(cidr)) for cidr in cidrs)


def block_of(status: SubnetStatus, address: str) -> SubnetBlock:
    """Return the subnet's range that contains the address."""
    return next(block for block in subnet_blocks(status) if IPv4Address(address) in block.cidr)


def address_of(allocation: Resource) -> str:
    """Return the first address of an Allocation's row: "10.128.0.5"."""
    return AllocationStatus.FromString(allocation.status).details.allocated_cidr.partition("/")[0]


def assignment_namespace(allocation_id: str) -> str:
    """Return the namespace of one reservation: its holder has the address."""
    return f"{allocation_id}/assignment"


def network_namespace(network_id: str) -> str:
    """Return the engine's namespace of a network's VirtualNetwork, which is also its name."""
    return network_id


def domain_of(network_name: str) -> str:
    """Return the DNS domain of a network's members: "default-network.internal"."""
    label = re.sub(r"[^a-z0-9]+", "-", network_name.lower())[:63].strip("-")
    return f"{label or 'network'}.internal"


ANYWHERE = "0.0.0.0/0"
_RULE_PRIORITY = 500
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


async def own_address(context: Context, parent_id: str, name: str, spec: AllocationSpec) -> Resource:
    """Return the Allocation of this name, which belongs to the context's resource and is assigned to it.
    Raises RetryLater until it has an address."""
    row = await context.ensure_child(ALLOCATION, name=name, parent_id=parent_id, spec=spec, labels={})
    await hold_address(context, row)
    return row


async def hold_address(context: Reservations, allocation: Resource) -> None:
    """Acquire the address for the context's resource. Raises RetryLater until there is one, and while another
    resource holds it."""
    address, allocation_id = address_of(allocation), allocation.id
    if not address:
        text = f"allocation {allocation_id} has no address yet"
        raise RetryLater(text, delay_seconds=CHILD_POLL_SECONDS)
    if not await assign(context, allocation_id):
        text = f"{address} ({allocation_id}) is in use by another"
        raise RetryLater(text, delay_seconds=CHILD_POLL_SECONDS)


def interface_of(
    subnet: Resource, private: Resource, public: Resource | None, *, mac: str, security_groups: Iterable[str]
) -> Interface:
    """Return the interface of a pod that has these addresses on the subnet."""
    return Interface(
        network=network_namespace(SubnetSpec.FromString(subnet.spec).network_id),
        subnet=subnet.id,
        address=IPv4Address(address_of(private)),
        mac=mac,
        security_groups=tuple(security_groups),
        public_address=IPv4Address(address_of(public)) if public else None,
    )


async def own_security_group(
    context: Context,
    subnet: Resource,
    parent_id: str,
    name: str,
    rules: Callable[[str], Mapping[str, SecurityRuleSpec]],
) -> Resource:
    """Return the security group of this name, which belongs to the context's resource and has these rules by
    name. `rules` is called with the id of the group. Users may add rules of their own."""
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    spec = SecurityGroupSpec(network_id=network_id)
    group = await context.ensure_child(SECURITY_GROUP, name=name, parent_id=parent_id, spec=spec, labels={})
    for rule_name, rule in rules(group.id).items():
        await context.ensure_child(SECURITY_RULE, name=rule_name, parent_id=group.id, spec=rule, labels={})
    return group


def allow(protocol: str = "ANY") -> SecurityRuleSpec:
    """Return a stateful rule that allows this protocol; its caller sets the direction."""
    return SecurityRuleSpec(
        access=RuleAccess.Value("ALLOW"),
        protocol=RuleProtocol.Value(protocol),
        type=RuleType.Value("STATEFUL"),
        priority=_RULE_PRIORITY,
    )


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
