"""Metrics of a control plane in Prometheus's format: its own counters, and the metrics of services.

Labels are names of the contract, ids and states: never text that a caller made up. Series of a project have
the label `project`, by which a project's people are limited to their own (see the monitoring service).
"""

from collections.abc import Iterable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

PROJECT_LABEL = "project"
UNKNOWN = "unknown"
"""In place of the name of a service or method that the API does not have."""
disable_created_metrics()  # a second series for each counter and histogram, which nothing reads
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RUN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def gauge(name: str, description: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """Return an empty family of gauges, for a service to fill."""
    return GaugeMetricFamily(name, description, labels=labels)


class Metrics:
    """The counters of one control plane."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._calls = Counter(
            "neocloud_api_requests",
            "Calls of the API that were answered.",
            ("service", "method", "code"),
            registry=self.registry,
        )
        self._call_seconds = Histogram(
            "neocloud_api_request_seconds",
            "From the arrival of a call to its answer.",
            ("service",),
            buckets=_CALL_SECONDS,
            registry=self.registry,
        )
        self._runs = Counter(
            "neocloud_reconcile_runs",
            "Runs of reconcilers, by result: done, waiting, failed, error (unexpected), lost.",
            ("kind", "result"),
            registry=self.registry,
        )
        self._run_seconds = Histogram(
            "neocloud_reconcile_run_seconds",
            "How long a run of a reconciler took.",
            ("kind",),
            buckets=_RUN_SECONDS,
            registry=self.registry,
        )
        self._failed_collections = Counter(
            "neocloud_metrics_collection_errors",
            "Services that could not tell their metrics.",
            ("service",),
            registry=self.registry,
        )

    def called(self, path: str, is_known: bool, code: str, seconds: float) -> None:
        """Count a call of the method at `path`, which a caller may have made up."""
        service, _, method = path.partition("/")
        if not is_known:
            service = method = UNKNOWN
        self._calls.labels(service, method, code).inc()
        self._call_seconds.labels(service).observe(seconds)

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        self._runs.labels(kind, result).inc()
        self._run_seconds.labels(kind).observe(seconds)

    def collection_failed(self, service: str) -> None:
        self._failed_collections.labels(service).inc()

    def text(self, families: Iterable[Metric] = ()) -> bytes:
        """Return everything that is counted, and these families, in the text format of Prometheus."""
        return generate_latest(_With(self.registry, tuple(families)))


class _With(CollectorRegistry):
    """A registry with families of this moment beside it."""

    def __init__(self, registry: CollectorRegistry, families: Sequence[Metric]) -> None:
        super().__init__()
        self._registry, self._families = registry, families

    def collect(self) -> Iterable[Metric]:
        yield from self._registry.collect()
        yield from self._families
