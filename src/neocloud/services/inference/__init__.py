"""Inference: models, the deployments that serve them, and budgets for their tokens.

The hardware of each replica of a deployment that is charged by the hour is charged for the whole seconds of
its reservation. Replicas of deployments that are charged by the token have reservations too, which cost
nothing. Replicas that are jobs of a cluster have none; the cluster's nodes are charged.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.service import Service
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.data_plane.gateway_keys import GatewayKey, load_or_make_gateway_key
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ReplicaReservationSpec
from neocloud.services.compute.public import preset
from neocloud.services.inference.api import KINDS, METHODS
from neocloud.services.inference.gateway_link import RouteChanges, TrafficBoard
from neocloud.services.inference.public import ModelFolders, MonthlySpending
from neocloud.services.inference.reconcile import reconcilers
from neocloud.services.inference.reconcile.model_server import HttpModelServerClient, ModelServerClient
from neocloud.services.inference.reconcile.reader import FolderReader, ModelReader
from neocloud.services.inference.rules.deployment import CAPACITY
from neocloud.services.inference.types import REPLICA_RESERVATION, RESERVATION_HELD


class ReservationMeter:
    kinds: tuple[str, ...] = (REPLICA_RESERVATION,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for interval in intervals(history, start, end):
            spec = ReplicaReservationSpec.FromString(interval.entry.spec)
            if interval.entry.state != RESERVATION_HELD or spec.charge != DeploymentSpec.BY_HOUR:
                continue
            for sku, units in preset(spec.platform, spec.preset).skus().items():
                yield interval.record(sku=sku, units=units, owner_id=spec.deployment_id)


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

__all__ = ["MonthlySpending", "RouteChanges", "SERVICE"]
