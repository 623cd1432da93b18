"""The resources of vpc, and functions for services that attach something to a subnet. Pure.

An owner (an instance, a cluster) makes its addresses as children (`context.ensure_child` with
`private_address` or `public_address`) and reads them with `address_of(row)` as soon as the child is there.
Any address, also one that a user made, is acquired with `assign` and released with `unassign` or by the
holder's deletion; who has it shows in the Allocation's status when it is read, not in its row.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from neocloud.core.reconcile.reconciler import Context
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import (
    AllocationSpec,
    AllocationStatus,
    SecurityGroupSpec,
    SecurityGroupStatus,
)

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
_ASSIGNED = "assigned"


class State(StrEnum):
    """States of vpc's resources; not every kind has all of them."""

    CREATING = "CREATING"
    READY = "READY"
    ALLOCATED = "ALLOCATED"
    ASSIGNED = "ASSIGNED"
    DELETING = "DELETING"


class NetworkReason(StrEnum):
    """Why a network cannot be made true."""

    ENGINE_REFUSED = "EngineRefused"


@dataclass(frozen=True)
class SubnetBlock:
    """One range of a subnet: what an interface in it has to know."""

    cidr: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        return self.cidr[1]

    @property
    def prefix_length(self) -> int:
        return self.cidr.prefixlen

    @property
    def reserved(self) -> frozenset[IPv4Address]:
        """Addresses that are nobody's: the network's own, the gateway, broadcast."""
        return frozenset({self.cidr[0], self.cidr[1], self.cidr[-1]})


def subnet_blocks(status: Any) -> tuple[SubnetBlock, ...]:
    """The ranges of a subnet, from its status."""
    cidrs = [cidr for pool in status.ipv4_private_pools for cidr in pool.cidrs]
    return tuple(SubnetBlock(IPv4Network(cidr)) for cidr in cidrs)


def block_of(status: Any, address: str) -> SubnetBlock:
    """The subnet's range that an address of it lies in."""
    return next(block for block in subnet_blocks(status) if IPv4Address(address) in block.cidr)


def private_address(subnet_id: str, address: str = "") -> Any:
    """The spec of an Allocation of one address in the subnet: a chosen one, or any."""
    spec = AllocationSpec()
    spec.ipv4_private.subnet_id = subnet_id
    spec.ipv4_private.cidr = address
    return spec


def public_address(subnet_id: str) -> Any:
    """The spec of an Allocation of one public address that this subnet's network may use."""
    spec = AllocationSpec()
    spec.ipv4_public.subnet_id = subnet_id
    return spec


def address_of(allocation: Resource) -> str:
    """The first address of an Allocation's row: "10.128.0.5"."""
    return AllocationStatus.FromString(allocation.status).details.allocated_cidr.partition("/")[0]


def assignment_namespace(allocation_id: str) -> str:
    """Whoever has the one reservation in this namespace has the address."""
    return f"{allocation_id}/assignment"


async def assign(context: Context, allocation_id: str) -> bool:
    """Acquire the address for the context's resource; False while another has it. May be repeated."""
    return await context.reserve(assignment_namespace(allocation_id), [_ASSIGNED]) is not None


async def unassign(context: Context, allocation_id: str) -> None:
    """Release the address, if this resource has it. Deleting the resource does it too."""
    await context.release(assignment_namespace(allocation_id), _ASSIGNED)


def default_security_group(groups: Iterable[Resource], network_id: str) -> Resource | None:
    """The one for interfaces that name none, among the rows of a project's security groups."""
    for row in groups:
        is_default = SecurityGroupStatus.FromString(row.status).default
        if is_default and SecurityGroupSpec.FromString(row.spec).network_id == network_id:
            return row
    return None


def network_namespace(network_id: str) -> str:
    """The engine's namespace, and name, of a network's VirtualNetwork."""
    return network_id


def domain_of(network_name: str) -> str:
    """The DNS domain of a network's members: "default-network.internal"."""
    label = re.sub(r"[^a-z0-9]+", "-", network_name.lower())[:63].strip("-")
    return f"{label or 'network'}.internal"
