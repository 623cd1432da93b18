"""Networks: subnets, pools, addresses, routes, security groups."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.vpc import rules
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.api import (
    ALIASES,
    METHODS,
    view_allocation,
    view_pool,
    view_route_table,
    view_subnet,
)
from neocloud.services.vpc.defaults import create_project_defaults, made_with_project
from neocloud.services.vpc.reconcile import NetworkReconciler

_PROJECT = ("nebius.iam.v1.Container",)

KINDS = (
    Kind(
        message=vpc.NETWORK,
        rpc="nebius.vpc.v1.NetworkService",
        id_prefix=vpc.NETWORK_ID_PREFIX,
        permission="vpc.networks",
        parent_kinds=_PROJECT,
        rules=rules.NetworkRules(),
        initial_state=vpc.VpcState.CREATING,
        is_reconciled=True,
    ),
    Kind(
        message=vpc.SUBNET,
        rpc="nebius.vpc.v1.SubnetService",
        id_prefix=vpc.SUBNET_ID_PREFIX,
        permission="vpc.subnets",
        parent_kinds=_PROJECT,
        rules=rules.SubnetRules(),
        initial_state=vpc.VpcState.READY,
        view=view_subnet,
    ),
    Kind(
        message=vpc.POOL,
        rpc="nebius.vpc.v1.PoolService",
        id_prefix=vpc.POOL_ID_PREFIX,
        permission="vpc.pools",
        parent_kinds=_PROJECT,
        rules=rules.PoolRules(),
        initial_state=vpc.VpcState.READY,
        view=view_pool,
    ),
    Kind(
        message=vpc.ALLOCATION,
        rpc="nebius.vpc.v1.AllocationService",
        id_prefix=vpc.ALLOCATION_ID_PREFIX,
        permission="vpc.allocations",
        parent_kinds=_PROJECT,
        rules=rules.AllocationRules(),
        initial_state=vpc.VpcState.ALLOCATED,
        view=view_allocation,
    ),
    Kind(
        message=vpc.ROUTE_TABLE,
        rpc="nebius.vpc.v1.RouteTableService",
        id_prefix=vpc.ROUTE_TABLE_ID_PREFIX,
        permission="vpc.routeTables",
        parent_kinds=_PROJECT,
        rules=rules.RouteTableRules(),
        initial_state=vpc.VpcState.READY,
        view=view_route_table,
    ),
    Kind(
        message=vpc.ROUTE,
        rpc="nebius.vpc.v1.RouteService",
        id_prefix=vpc.ROUTE_ID_PREFIX,
        permission="vpc.routes",
        parent_kinds=(vpc.ROUTE_TABLE,),
        rules=rules.RouteRules(),
        initial_state=vpc.VpcState.READY,
    ),
    Kind(
        message=vpc.SECURITY_GROUP,
        rpc="nebius.vpc.v1.SecurityGroupService",
        id_prefix=vpc.SECURITY_GROUP_ID_PREFIX,
        permission="vpc.securityGroups",
        parent_kinds=_PROJECT,
        rules=rules.SecurityGroupRules(),
        initial_state=vpc.VpcState.READY,
    ),
    Kind(
        message=vpc.SECURITY_RULE,
        rpc="nebius.vpc.v1.SecurityRuleService",
        id_prefix=vpc.SECURITY_RULE_ID_PREFIX,
        permission="vpc.securityRules",
        parent_kinds=(vpc.SECURITY_GROUP,),
        rules=rules.SecurityRuleRules(),
        initial_state=vpc.VpcState.READY,
    ),
)

SERVICE = Service(
    name="vpc",
    kinds=KINDS,
    methods=METHODS,
    aliases=ALIASES,
    reconcilers=lambda dependencies: (
        NetworkReconciler(dependencies.engine, dependencies.settings.platform_services),
    ),
    defaults={"nebius.iam.v1.Container": create_project_defaults},
    made_with={"nebius.iam.v1.Container": made_with_project},
)

__all__ = ["KINDS", "SERVICE"]
