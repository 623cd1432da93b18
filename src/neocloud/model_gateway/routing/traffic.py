"""Count requests: by deployment for the control plane, which scales replicas by it, and for Prometheus.

Labels of metrics are names of existing models, never input of a caller.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.messages.neocloud.inference.v1 import Traffic as TrafficMessage
from neocloud.model_gateway.control_plane import ControlPlane
from neocloud.model_gateway.metering.usage import TokenUsage

logger = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
QUIET_REPORTS = 10
"""Without traffic, an empty report is sent once in so many intervals: no traffic is not the same as no
report."""


@dataclass(slots=True)
class _Count:
    in_flight: int = 0
    waiting: int = 0
    """Waiting for a replica to start."""
    refused: int = 0
    """Rejected with 503 since the last report because no replica runs; these start a replica as well."""
    in_report: int = 0
    """The part of `refused` that is in the report being sent."""
    has_changed: bool = False


class Traffic:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, _Count] = {}
        self._report_now = asyncio.Event()
        self.batch_requests = 0
        """Batch requests among all requests in flight or waiting."""

    def _count(self, deployment_id: str) -> _Count:
        count = self._counts.get(deployment_id)
        if count is None:
            count = self._counts[deployment_id] = _Count()
        return count

    def started(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.in_flight += 1
        count.has_changed = True

    def finished(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.in_flight -= 1
        count.has_changed = True

    def start_waiting(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.waiting += 1
        self._report_soon(count)

    def stop_waiting(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.waiting -= 1
        count.has_changed = True

    def count_refused(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.refused += 1
        self._report_soon(count)

    def _report_soon(self, count: _Count) -> None:
        count.has_changed = True
        if count.waiting + count.refused == 1:
            self._report_now.set()

    def in_flight(self) -> int:
        return sum(count.in_flight for count in self._counts.values())

    def live_requests(self) -> int:
        """Return the number of requests without those of batches."""
        all_of_them = sum(count.in_flight + count.waiting for count in self._counts.values())
        return max(all_of_them - self.batch_requests, 0)

    def report(self) -> list[TrafficMessage]:
        """Return the changes to report; empty when there is no traffic and no change."""
        now = self._clock.now()
        items: list[TrafficMessage] = []
        for deployment_id, count in list(self._counts.items()):
            is_busy = count.in_flight or count.waiting
            if not is_busy and not count.has_changed:
                continue
            items.append(
                TrafficMessage(
                    deployment_id=deployment_id,
                    in_flight=count.in_flight,
                    waiting=count.waiting + count.refused,
                    last_request_at=contract.timestamp(now),
                )
            )
        return items

    def begin_report(self) -> None:
        """Start a report; later changes belong to the next one."""
        for count in self._counts.values():
            count.in_report, count.refused = count.refused, 0
            count.has_changed = False

    def report_delivered(self) -> None:
        """The control plane has received the report."""
        for deployment_id, count in list(self._counts.items()):
            count.in_report = 0
            if not count.in_flight and not count.waiting and not count.has_changed:
                del self._counts[deployment_id]

    def report_failed(self) -> None:
        for count in self._counts.values():
            count.refused += count.in_report
            count.in_report = 0
            count.has_changed = True

    async def report_periodically(self, control_plane: ControlPlane) -> None:
        """Report each second while there is traffic, and immediately when a request waits for a replica."""
        silent = QUIET_REPORTS
        while True:
            self._report_now.clear()
            items = self.report()
            silent += 1
            if items or silent >= QUIET_REPORTS:
                silent = 0
                try:
                    self.begin_report()
                    await control_plane.report(items)
                    self.report_delivered()
                except ControlPlaneUnavailable as error:
                    self.report_failed()
                    logger.info("Traffic was not reported: %s", error)
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._report_now.wait()
            except TimeoutError:
                continue


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self, in_flight: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "model", "path", "status")
        self._tokens = self._counter("tokens", "Tokens taken and made.", "model", "kind")
        self._upstream_errors = self._counter(
            "upstream_errors", "Replicas that failed.", "deployment", "reason"
        )
        self._first = Histogram(
            "neocloud_gateway_time_to_first_byte_seconds",
            "From a request's arrival to the first byte of its answer.",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._whole = Histogram(
            "neocloud_gateway_request_seconds",
            "From a request's arrival to the last byte of its answer.",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        gauge = Gauge("neocloud_gateway_in_flight", "Requests being answered.", registry=self.registry)
        gauge.set_function(in_flight)
        self._children: dict[tuple[object, ...], object] = {}

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"neocloud_gateway_{name}", description, labels, registry=self.registry)

    def answered(self, model: str, path: str, status: int, first: float, whole: float) -> None:
        key = (model, path, status)
        children = self._children.get(key)
        if children is None:  # finding children by labels costs more than counting
            children = self._children[key] = (
                self._requests.labels(model, path, str(status)).inc,
                self._first.labels(model).observe,
                self._whole.labels(model).observe,
            )
        count, observe_first, observe_whole = children  # type: ignore[misc]
        count()
        if status == 200:
            observe_first(first)
            observe_whole(whole)

    def used(self, model: str, usage: TokenUsage) -> None:
        key = (model,)
        children = self._children.get(key)
        if children is None:
            kinds = ("input", "cached_input", "output")
            children = self._children[key] = tuple(self._tokens.labels(model, kind).inc for kind in kinds)
        count_input, count_cached, count_output = children  # type: ignore[misc]
        count_input(usage.input)
        if usage.cached_input:
            count_cached(usage.cached_input)
        count_output(usage.output)

    def upstream_error(self, deployment_id: str, reason: str) -> None:
        self._upstream_errors.labels(deployment_id, reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
