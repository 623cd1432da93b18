"""Tuning: jobs that train a model on a file of conversations.

A job is charged for the preset of its pod while it runs. Jobs on a Slurm cluster are not charged extra.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.service import Service
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobSpec
from neocloud.services.compute.public import preset
from neocloud.services.tuning.api import KINDS, METHODS, lineage, trained_models
from neocloud.services.tuning.reconcile import reconcilers
from neocloud.services.tuning.rules import CAPACITY
from neocloud.services.tuning.types import JOB, Files, JobState


class FineTuningJobMeter:
    kinds: tuple[str, ...] = (JOB,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for interval in intervals(history, start, end):
            spec = FineTuningJobSpec.FromString(interval.entry.spec)
            if interval.entry.state != JobState.RUNNING or not spec.platform:
                continue
            for sku, units in preset(spec.platform, spec.preset).skus().items():
                yield interval.record(sku=sku, units=units)


SERVICE = Service(
    name="tuning",
    kinds=KINDS,
    methods=(*METHODS, *lineage.METHODS, *trained_models.METHODS),
    reconcilers=reconcilers,
    capacity=CAPACITY,
    meters=(FineTuningJobMeter(),),
)

__all__ = ["Files", "SERVICE"]
