"""AI workloads: endpoints and jobs, which run container images on a project's subnet.

A workload is charged for the parts of its shape, and its disk, for whole seconds of RUNNING.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.nebius.ai.v1 import EndpointSpec, JobSpec
from neocloud.messages.nebius.compute.v1 import DiskSpec
from neocloud.services.ai import api, logs
from neocloud.services.ai.api import without_secrets
from neocloud.services.ai.reconcile import reconcilers
from neocloud.services.ai.rules import CAPACITY, FILE_REQUEST_BYTES, EndpointRules, JobRules
from neocloud.services.ai.types import (
    ENDPOINT,
    ENDPOINT_ID_PREFIX,
    JOB,
    JOB_ID_PREFIX,
    EndpointState,
    JobState,
    KnownImages,
    WorkloadSpec,
)
from neocloud.services.compute.public import preset
from neocloud.services.compute.types import GIB
from neocloud.settings.settings import Settings


def known_images(settings: Settings) -> KnownImages:
    """Return a lookup that reads the folder on each call: images may be built while the server runs."""
    if settings.emulator:
        return lambda: None
    return lambda: _names(settings.home / "images")


def _names(folder: Path) -> Sequence[str]:
    found: list[str] = []
    for record in sorted(folder.glob("*/image.json")):
        try:
            name = json.loads(record.read_text()).get("name", "")
        except (OSError, ValueError):
            continue  # being written; the next request sees it
        if name:
            found.append(name)
    return found


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


_VERBS = frozenset({"Create", "Get", "GetByName", "List", "Delete"})
_PROJECT = ("nebius.iam.v1.Container",)

KINDS = (
    Kind(
        message=ENDPOINT,
        rpc="nebius.ai.v1.EndpointService",
        id_prefix=ENDPOINT_ID_PREFIX,
        permission="ai.endpoints",
        parent_kinds=_PROJECT,
        verbs=_VERBS,
        rules=EndpointRules(),
        initial_state=EndpointState.PROVISIONING,
        stopped_state=EndpointState.STOPPED,
        is_reconciled=True,
        view=without_secrets,
        larger_request_bytes=FILE_REQUEST_BYTES,
    ),
    Kind(
        message=JOB,
        rpc="nebius.ai.v1.JobService",
        id_prefix=JOB_ID_PREFIX,
        permission="ai.jobs",
        parent_kinds=_PROJECT,
        verbs=_VERBS,
        rules=JobRules(),
        initial_state=JobState.PROVISIONING,
        stopped_state=JobState.PROVISIONING,
        working_states=frozenset({JobState.STARTING, JobState.RUNNING}),
        is_reconciled=True,
        view=without_secrets,
        larger_request_bytes=FILE_REQUEST_BYTES,
    ),
)

SERVICE = Service(
    name="ai",
    kinds=KINDS,
    methods=(*api.METHODS, *logs.METHODS),
    reconcilers=reconcilers,
    meters=METERS,
    capacity=CAPACITY,
    provides={KnownImages: lambda dependencies: known_images(dependencies.settings)},
)

__all__ = ["SERVICE"]
