"""What is charged, from history in whole seconds: the parts of the shape, and the disk, while it runs."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.nebius.compute.v1 import DiskSpec
from neocloud.services.ai.resources import ENDPOINT, JOB, EndpointState
from neocloud.services.compute.public import preset
from neocloud.services.compute.types import GIB

DiskType = DiskSpec.DiskType
RUNNING = EndpointState.RUNNING
"""Jobs call it the same."""


class WorkloadMeter:
    def __init__(self, kind: str) -> None:
        self.kinds: tuple[str, ...] = (kind,)
        self._spec = contract.message(f"{kind}Spec")

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state != RUNNING:
                continue
            spec = self._spec.FromString(stretch.entry.spec)
            skus = preset(spec.platform, spec.preset).skus(is_preemptible=spec.preemptible)
            yield from (stretch.record(sku=sku, units=units) for sku, units in skus.items())
            gibibytes = -(-spec.disk.size_bytes // GIB)
            if gibibytes and spec.disk.type:
                word = DiskType.Name(spec.disk.type).lower().replace("_", "-")
                yield stretch.record(sku=f"disk.{word}", units=gibibytes)


METERS = (WorkloadMeter(ENDPOINT), WorkloadMeter(JOB))
