"""What Prometheus reads at /metrics. Labels are names of models that exist, never what a caller made up."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from neocloud.gateway.accounts import TokenUsage

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

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"neocloud_gateway_{name}", says, labels, registry=self.registry)

    def answered(self, model: str, path: str, status: int, first: float, whole: float) -> None:
        key = (model, path, status)
        children = self._children.get(key)
        if children is None:  # looking up by labels costs more than counting
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
        count_cached(usage.cached_input)
        count_output(usage.output)

    def upstream_error(self, deployment_id: str, reason: str) -> None:
        self._upstream_errors.labels(deployment_id, reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
