"""What is legal in a network: ranges, addresses, routes, security groups. Pure."""

from neocloud.services.vpc.rules.allocations import AllocationRules
from neocloud.services.vpc.rules.networks import NetworkRules
from neocloud.services.vpc.rules.pools import PoolRules
from neocloud.services.vpc.rules.routes import RouteRules, RouteTableRules
from neocloud.services.vpc.rules.security import SecurityGroupRules, SecurityRuleRules
from neocloud.services.vpc.rules.subnets import SubnetRules

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
