"""`GET /metrics` of the control plane, in Prometheus's text format.

It shows the activity of all tenants, so only operators read it, and collectors with the key of the state
folder. A service that cannot tell its metrics is left out and counted; the others are shown.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from prometheus_client import Metric

from neocloud import __version__
from neocloud.core.clock import Clock
from neocloud.core.metrics import Metrics, gauge
from neocloud.core.readers import Subject
from neocloud.core.reconcile import Worker
from neocloud.core.service import Dependencies, Service
from neocloud.core.store.protocol import StoreError
from neocloud.data_plane.metrics_keys import ScrapeKey

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERVICE_SECONDS = 5.0
"""How long a service may take to tell its metrics."""
MOST_COUNTED = 10_000
"""Resources that wait for a run are counted up to this number."""


class MetricsPage:
    def __init__(
        self,
        services: Sequence[Service],
        dependencies: Dependencies,
        worker: Worker,
        key: ScrapeKey,
        require_operator: Callable[[Subject], Awaitable[None]],
    ) -> None:
        """`require_operator` raises ApiError for anybody else."""
        self._services = [each for each in services if each.metrics is not None]
        self._dependencies = dependencies
        self._worker = worker
        self._key = key
        self._require_operator = require_operator
        self._metrics = dependencies.provided.get(Metrics)
        self._one_at_a_time = asyncio.Lock()

    async def authorize(
        self, headers: Mapping[str, str], known_caller: Callable[[Mapping[str, str]], Awaitable[Subject]]
    ) -> None:
        """Raise ApiError unless the caller has the key or is an operator."""
        if not self._key.is_shown(headers):
            await self._require_operator(await known_caller(headers))

    async def text(self) -> bytes:
        async with self._one_at_a_time:
            found = await asyncio.gather(*(self._of(service) for service in self._services))
            own = await self._own(self._dependencies.clock)
            return self._metrics.text([*own, *(each for families in found for each in families)])

    async def _of(self, service: Service) -> Sequence[Metric]:
        assert service.metrics is not None, "Only services with metrics are asked."
        try:
            async with asyncio.timeout(SERVICE_SECONDS):
                return list(await service.metrics(self._dependencies))
        except Exception as error:  # noqa: BLE001 - one service must not hide the others
            logger.warning("%s cannot tell its metrics: %s", service.name, error or type(error).__name__)
            self._metrics.collection_failed(service.name)
            return ()

    async def _own(self, clock: Clock) -> Iterable[Metric]:
        """Return what is known without a service: the version, the queue of the reconcilers, the store."""
        build = gauge("neocloud_build_info", "The release that runs.", ("version",))
        build.add_metric([__version__], 1)
        running = gauge("neocloud_reconcile_running", "Runs of reconcilers under way.")
        running.add_metric([], self._worker.under_way)
        due = gauge("neocloud_reconcile_due", f"Resources that wait for a run; {MOST_COUNTED} at most.")
        up = gauge("neocloud_store_up", "Whether the store answers.")
        seconds = gauge("neocloud_store_read_seconds", "How long the store took for one short read.")
        began = clock.monotonic()
        try:
            due.add_metric([], await self._worker.count_due(MOST_COUNTED))
            seconds.add_metric([], clock.monotonic() - began)
            up.add_metric([], 1)
        except StoreError as error:
            logger.warning("The store does not answer: %s", error)
            up.add_metric([], 0)
        return (build, running, due, up, seconds)
