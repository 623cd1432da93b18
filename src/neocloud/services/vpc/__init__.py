"""Networks: subnets, pools, addresses, routes, security groups."""

from neocloud.core.service import Service
from neocloud.services.vpc.api import METHODS, TWINS
from neocloud.services.vpc.kinds import KINDS
from neocloud.services.vpc.reconcile import NetworkReconciler
from neocloud.services.vpc.seed import seed_project

SERVICE = Service(
    name="vpc",
    kinds=KINDS,
    methods=METHODS,
    twins=TWINS,
    reconcilers=lambda dependencies: (NetworkReconciler(dependencies.engine),),
    seeds={"nebius.iam.v1.Container": seed_project},
)

__all__ = ["SERVICE"]
