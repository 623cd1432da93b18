"""Networks: subnets, pools, addresses, routes, security groups."""

from neocloud.core.service import Service
from neocloud.services.vpc.api import ALIASES, METHODS
from neocloud.services.vpc.defaults import create_project_defaults
from neocloud.services.vpc.kinds import KINDS
from neocloud.services.vpc.reconcile import NetworkReconciler

SERVICE = Service(
    name="vpc",
    kinds=KINDS,
    methods=METHODS,
    aliases=ALIASES,
    reconcilers=lambda dependencies: (NetworkReconciler(dependencies.engine),),
    defaults={"nebius.iam.v1.Container": create_project_defaults},
)

__all__ = ["SERVICE"]
