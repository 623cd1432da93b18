"""Validation rules of networks: ranges, addresses, routes, security groups. Pure."""

from neocloud.services.vpc.rules.allocations import AllocationRules
from neocloud.services.vpc.rules.networks import NetworkRules
from neocloud.services.vpc.rules.pools import PoolRules
from neocloud.services.vpc.rules.subnets import SubnetRules
from neocloud.services.vpc.rules.traffic import (
    RouteRules,
    RouteTableRules,
    SecurityGroupRules,
    SecurityRuleRules,
)

__all__ = [
    "AllocationRules",
    "NetworkRules",
    "PoolRules",
    "RouteRules",
    "RouteTableRules",
    "SecurityGroupRules",
    "SecurityRuleRules",
    "SubnetRules",
]
