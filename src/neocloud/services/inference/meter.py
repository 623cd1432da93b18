"""Charges by the hour: the hardware of each replica, for the whole seconds of its reservation.

Replicas of deployments that are charged by the token have reservations too, which cost nothing. Replicas that
are jobs of a cluster have none; the cluster's nodes are charged.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ReplicaReservationSpec
from neocloud.services.compute.public import preset
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
                yield interval.record(sku=sku, units=units)
