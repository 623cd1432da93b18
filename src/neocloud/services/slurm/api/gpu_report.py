"""The GPU use of a job's runs, from the store of metrics: means, estimated TFLOP/s and energy; and what
happened to its nodes meanwhile.

Slurm's record does not say which GPUs of a node a job had. So there are figures only for a run that had all
GPUs of its nodes. A figure that is not known is absent with the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from neocloud.core.service import Call
from neocloud.fleet.nodes.gpu_use import MEASURES, peak_tflops
from neocloud.messages.neocloud.slurm.v1 import JobGpuUse, JobReport
from neocloud.services.monitoring.public import MetricsReader, MetricsUnknown, Sample
from neocloud.services.slurm.accounting import JobRun, node_names
from neocloud.services.slurm.public import NodeHistory, NodeHistoryUnknown

MOST_NODES = 1024
MOST_RUNS = 5
MOST_EVENTS = 100
POINTS = 500
"""At most so many moments of a run are looked at, to know how much of its time is covered."""
LEAST_STEP = 15.0
WHOLE = 0.9
"""The least coverage from which energy of the whole time is shown."""
SIMULATED = "neocloud_fleet_node_gpus_simulated"
_Key = tuple[str, str]


@dataclass(frozen=True)
class Gpu:
    """One GPU of a run: means of what it told."""

    model: str
    coverage: float
    means: Mapping[str, float]

    @property
    def peak(self) -> float | None:
        return peak_tflops(self.model)


async def add_use_and_events(call: Call, cluster_id: str, runs: Sequence[JobRun], report: JobReport) -> None:
    """Add to the report what GPUs did in its last runs, and what happened to its nodes."""
    now = call.dependencies.clock.now().timestamp()
    cluster = await call.dependencies.store.read(lambda tx: tx.get(cluster_id))
    metrics = call.dependencies.provided.find(MetricsReader)
    for run, message in list(zip(runs, report.runs, strict=True))[-MOST_RUNS:]:
        if not run.gpus or cluster is None:
            continue
        try:
            if metrics is None:
                raise MetricsUnknown("this cloud keeps no history of metrics")
            use = await gpu_use(metrics, cluster.parent_id, cluster_id, run, now)
        except MetricsUnknown as error:
            use = JobGpuUse(not_known=[f"what GPUs did: {error}"])
        message.gpu_use.CopyFrom(use)
    await _add_events(call, cluster_id, runs, report, now)


async def _add_events(
    call: Call, cluster_id: str, runs: Sequence[JobRun], report: JobReport, now: float
) -> None:
    """Add the events of each run's nodes in its time."""
    history = call.dependencies.provided.find(NodeHistory)
    found: dict[tuple[float, str, str], None] = {}
    try:
        for run in runs[-MOST_RUNS:]:
            if history is None:
                raise NodeHistoryUnknown("nodes are not watched in this cloud")
            nodes = node_names(run.nodes, MOST_NODES)
            for each in await history.events(cluster_id, nodes, *_span(run, now)):
                found[each.at, each.worker, each.text] = None
    except (NodeHistoryUnknown, ValueError) as error:
        report.not_known.append(f"events of its nodes: {error}")
    for at, worker, text in sorted(found)[-MOST_EVENTS:]:
        report.node_events.add(node=worker, text=text).at.FromMicroseconds(round(at * 1e6))


async def gpu_use(
    metrics: MetricsReader, project_id: str, cluster_id: str, run: JobRun, now: float
) -> JobGpuUse:
    """Raises MetricsUnknown."""
    start, end = _span(run, now)
    try:
        nodes = node_names(run.nodes, MOST_NODES + 1)
    except ValueError as error:
        return JobGpuUse(not_known=[f"what GPUs did: {error}"])
    if len(nodes) > MOST_NODES:
        return JobGpuUse(not_known=[f"what GPUs did: more than {MOST_NODES} nodes"])
    found, is_simulated = await _read(metrics, project_id, cluster_id, nodes, start, end)
    return summary(found, run.gpus, end - start, is_simulated=is_simulated)


def _span(run: JobRun, now: float) -> tuple[float, float]:
    start = run.started_at.timestamp() if run.started_at else now
    end = run.finished_at.timestamp() if run.finished_at else now
    return start, max(start + 1.0, end)


async def _read(
    metrics: MetricsReader, project_id: str, cluster_id: str, nodes: Sequence[str], start: float, end: float
) -> tuple[list[Gpu], bool]:
    names = "|".join(nodes).replace(".", "\\\\.")
    labels = f'{{cluster="{cluster_id}",node=~"{names}"}}'
    seconds, step = int(end - start), int(max(LEAST_STEP, (end - start) / POINTS))
    models, means, coverage = dict[_Key, str](), dict[_Key, dict[str, float]](), dict[_Key, float]()
    for name in ("utilisation", "tensor_active", "power"):
        series = MEASURES[name].series
        for each in await metrics.query(project_id, f"avg_over_time({series}{labels}[{seconds}s])", end):
            key = _key(each)
            models[key] = each.labels.get("modelName", "")
            means.setdefault(key, {})[name] = each.value
    counted = f"count_over_time({MEASURES['utilisation'].series}{labels}[{seconds}s:{step}s])"
    for each in await metrics.query(project_id, counted, end):
        coverage[_key(each)] = min(1.0, each.value / max(1, seconds // step))
    simulated = await metrics.query(project_id, f"max_over_time({SIMULATED}{labels}[{seconds}s])", end)
    found = [Gpu(models[key], coverage.get(key, 0.0), means[key]) for key in sorted(means)]
    return found, any(each.value for each in simulated)


def _key(sample: Sample) -> _Key:
    return sample.labels.get("node", ""), sample.labels.get("gpu", "")


def summary(found: Sequence[Gpu], had: int, seconds: float, *, is_simulated: bool = False) -> JobGpuUse:
    """Return what is known of the GPUs of a run that had so many."""
    use = JobGpuUse(is_simulated=is_simulated)
    if not found:
        use.not_known.append("what GPUs did: the store of metrics has no readings of its nodes in its time")
    elif len(found) > had:
        text = f"the job had {had} of the {len(found)} GPUs of its nodes, and which is not recorded"
        use.not_known.append(f"what GPUs did: {text}")
    if use.not_known:
        return use
    use.gpus, use.coverage = len(found), fmean(each.coverage for each in found)
    if len(found) < had:
        use.not_known.append(f"{had - len(found)} of its {had} GPUs: there are no readings of them")
    for name in ("utilisation", "tensor_active"):
        values = [each.means[name] for each in found if name in each.means]
        if len(values) == len(found):
            setattr(use, {"utilisation": "utilisation_percent"}.get(name, name), fmean(values))
    use.not_known.extend(_estimate(use, found, had))
    use.not_known.extend(_energy(use, found, had, seconds))
    return use


def _estimate(use: JobGpuUse, found: Sequence[Gpu], had: int) -> Iterator[str]:
    peaks = [each.peak for each in found]
    if not use.HasField("tensor_active"):
        yield "tensor activity and TFLOP/s: GPUs do not tell it (NVML has it from Hopper on)"
    elif None in peaks:
        yield "TFLOP/s: the peak of a GPU's model is unknown"
    elif len(found) < had:
        yield "TFLOP/s: not all of its GPUs have readings"
    else:
        use.peak_tflops = sum(peak or 0.0 for peak in peaks)
        use.estimated_tflops = sum(each.means["tensor_active"] * (each.peak or 0.0) for each in found)


def _energy(use: JobGpuUse, found: Sequence[Gpu], had: int, seconds: float) -> Iterator[str]:
    powers = [each.means["power"] for each in found if "power" in each.means]
    if len(powers) < had:
        yield "energy: not all of its GPUs have readings of power"
    elif use.coverage < WHOLE:
        yield f"energy: readings cover {100 * use.coverage:.0f}% of its time"
    else:
        use.energy_joules = sum(powers) * seconds
