"""Inference: models, the deployments that serve them, and what may be spent on their tokens."""

from neocloud.core.service import Service
from neocloud.services.inference.api import KINDS, METHODS
from neocloud.services.inference.extras import MONTHLY_SPENDING, ROUTE_CHANGES, extras
from neocloud.services.inference.meter import PlaceMeter
from neocloud.services.inference.reconcile import reconcilers

SERVICE = Service(
    name="inference", kinds=KINDS, methods=METHODS, reconcilers=reconcilers, meters=(PlaceMeter(),)
)

__all__ = ["MONTHLY_SPENDING", "ROUTE_CHANGES", "SERVICE", "extras"]
