"""The kinds of vpc with their id prefixes, states and error reasons, and what their statuses say. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.vpc.v1 import AllocationStatus, SubnetStatus

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


class State(StrEnum):
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
