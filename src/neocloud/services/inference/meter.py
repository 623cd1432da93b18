"""What is charged by the hour: the parts of each replica's shape, for the whole seconds that it had its
place.

Deployments that are charged by the token have places too, which cost nothing: their tokens do. Replicas that
are jobs of a cluster have none; the cluster's nodes are charged.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, PlaceSpec
from neocloud.services.compute.public import preset
from neocloud.services.inference.types import REPLICA_RESERVATION, RESERVATION_HELD


class ReservationMeter:
    kinds: tuple[str, ...] = (REPLICA_RESERVATION,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            spec = PlaceSpec.FromString(stretch.entry.spec)
            if stretch.entry.state != RESERVATION_HELD or spec.charge != DeploymentSpec.BY_HOUR:
                continue
            for sku, units in preset(spec.platform, spec.preset).skus().items():
                yield stretch.record(sku=sku, units=units)
