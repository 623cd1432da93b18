"""The meter of endpoints and jobs: the parts of the shape, and the disk, for whole seconds of RUNNING."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.nebius.ai.v1 import EndpointSpec, JobSpec
from neocloud.messages.nebius.compute.v1 import DiskSpec
from neocloud.services.ai.types import ENDPOINT, JOB, EndpointState, WorkloadSpec
from neocloud.services.compute.public import preset
from neocloud.services.compute.types import GIB

DiskType = DiskSpec.DiskType
RUNNING = EndpointState.RUNNING
"""The state has the same name in jobs."""


class WorkloadMeter:
    def __init__(self, kind: str, spec: type[WorkloadSpec]) -> None:
        self.kinds: tuple[str, ...] = (kind,)
        self._spec = spec

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
                disk_type = DiskType.Name(spec.disk.type).lower().replace("_", "-")
                yield stretch.record(sku=f"disk.{disk_type}", units=gibibytes)


METERS = (WorkloadMeter(ENDPOINT, EndpointSpec), WorkloadMeter(JOB, JobSpec))
