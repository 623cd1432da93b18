"""Inference: models, the deployments that serve them, and budgets for their tokens."""

from neocloud.core.gateway_key import GatewayKey, load_or_make_gateway_key
from neocloud.core.service import Service
from neocloud.services.inference.api import KINDS, METHODS
from neocloud.services.inference.gateway_link import RouteChanges, TrafficBoard
from neocloud.services.inference.meter import ReservationMeter
from neocloud.services.inference.public import ModelFolders, MonthlySpending
from neocloud.services.inference.reconcile import reconcilers
from neocloud.services.inference.reconcile.model_server import HttpModelServerClient, ModelServerClient
from neocloud.services.inference.reconcile.reader import FolderReader, ModelReader
from neocloud.services.inference.rules.deployment import CAPACITY

SERVICE = Service(
    name="inference",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    meters=(ReservationMeter(),),
    capacity=CAPACITY,
    provides={
        TrafficBoard: lambda dependencies: TrafficBoard(dependencies.clock),
        ModelFolders: lambda dependencies: ModelFolders(
            dependencies.settings.home / "models", dependencies.settings.model_folders
        ),
        ModelReader: lambda dependencies: FolderReader(),
        ModelServerClient: lambda dependencies: HttpModelServerClient(),
        GatewayKey: lambda dependencies: load_or_make_gateway_key(dependencies.settings.home),
    },
)

__all__ = ["SERVICE", "MonthlySpending", "RouteChanges"]
