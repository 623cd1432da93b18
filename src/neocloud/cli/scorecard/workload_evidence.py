"""Evidence for criteria of ClusterMAX from jobs, active checks and agents: first jobs, storage, fabric.

Texts of checks come from workers, where tenants' programs run: of them only numbers are shown.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from neocloud.cli.scorecard.cloud_facts import CloudFacts, Found, NodeFacts
from neocloud.cli.scorecard.scorecard import Score

DISK, IMPORT = ("disk_read", "disk_write"), ("import_torch",)
NCCL, GLOO = ("pair_nccl_all_reduce", "nccl_all_reduce"), ("pair_all_reduce",)
MEASURED = ("pass", "fail")
WEEK = timedelta(days=7)


def of_workloads(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    workers = [node for node in facts.nodes if not node.is_host]
    yield from _of_clusters(facts, now)
    yield from _of_storage(facts, workers, now)
    yield from _of_mounts(facts, workers, now)
    yield from _of_imports(workers, now)
    yield from _of_collectives(workers, now)
    if (use := facts.gpu_use) is not None:
        yield _of_gpu_use(use.jobs, use.known, use.simulated, now)


def _of_clusters(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    clusters = facts.clusters
    if not clusters:
        return
    ended = [(at, at - each.created_at) for each in clusters if (at := each.first_job_ended_at) is not None]
    if ended:
        took = sorted(seconds.total_seconds() for _, seconds in ended)
        text = f"the first job of {len(took)} of {len(clusters)} Slurm clusters ended {took[0]:,.0f} to"
        text += (
            f" {took[-1]:,.0f} s after the cluster was ordered; there is an API, and no record of a console"
        )
        yield "LIF-2", Score.PARTIAL, f"{text} or of Terraform", max(at for at, _ in ended)
    else:
        text = f"none of the first jobs of {len(clusters)} Slurm clusters has completed"
        yield "LIF-2", Score.NOT_RUN, text, None
    placed = sum(each.has_topology for each in clusters)
    gpus = sum(node.gpus for node in facts.nodes if not node.is_host)
    of_gpus = f"workers have {gpus} GPUs"
    if any(node.is_simulated for node in facts.nodes if node.gpus):
        of_gpus += ", simulated in part"
    if placed:
        text = f"Slurm places jobs by the topology of {placed} of {len(clusters)} clusters"
        yield "NET-1", Score.PARTIAL, f"{text}; that the fabric has no bottleneck was not measured", now
        text = f"{placed} of {len(clusters)} clusters have a topology; {of_gpus}; no record shows containers,"
        yield "ORC-2", Score.PARTIAL, f"{text} MPI or modules", now
    else:
        text = f"none of {len(clusters)} clusters has a topology"
        yield "NET-1", Score.NOT_RUN, text, None
        text += f"; {of_gpus}; no record shows containers, MPI or modules"
        yield "ORC-2", Score.NOT_RUN, text, None


def _of_storage(facts: CloudFacts, workers: Sequence[NodeFacts], now: datetime) -> Iterator[Found]:
    if not facts.filesystems and not facts.buckets:
        return
    text = f"there are {facts.filesystems} shared filesystems and {facts.buckets} buckets; "
    nodes, failed, values, oldest = _measured(workers, DISK, "MB/s", now)
    if not nodes:
        yield "STO-1", Score.NOT_RUN, f"{text}within 7 days no check measured bandwidth", None
        return
    text += f"within 7 days {nodes} of {len(workers)} workers measured {_range(values, 'MB/s')}, 64 MiB at a"
    text += " time" + (f", {failed} below the limit" if failed else "")
    text += "; the bandwidth of object storage was not measured"
    yield "STO-1", Score.PARTIAL, text, oldest


def _of_mounts(facts: CloudFacts, workers: Sequence[NodeFacts], now: datetime) -> Iterator[Found]:
    if not workers:
        return
    if gone := sum(node.has_mount_fault for node in workers):
        text = f"on {gone} of {len(workers)} workers a mount is missing or read-only now"
        yield "STO-2", Score.FAIL, text, now
        return
    seen = [node for node in workers if node.agent == "pass"]
    if facts.mount_failures:
        text = f"{len(facts.mount_failures)} times a mount was missing or read-only, and it was not refuted"
        yield "STO-2", Score.PARTIAL, f"{text}; none is now", max(facts.mount_failures)
    elif seen:
        often = max(node.agent_seconds for node in seen)
        text = f"the agents of {len(seen)} of {len(workers)} workers look at mounts every {often:.0f} s, and"
        yield "STO-2", Score.PARTIAL, f"{text} no failure is listed; since when is not on record", now
    else:
        yield "STO-2", Score.NOT_RUN, f"no agent looks at the mounts of {len(workers)} workers", None


def _of_imports(workers: Sequence[NodeFacts], now: datetime) -> Iterator[Found]:
    nodes, failed, values, oldest = _measured(workers, IMPORT, "s", now)
    if nodes:
        text = f"`import torch` took {_range(values, 's')} on {nodes} of {len(workers)} workers"
        text += f", {failed} of them over the limit" if failed else ""
        score = Score.FAIL if failed == nodes else Score.PARTIAL
        yield "STO-3", score, f"{text}; on all at the same time it was not tried", oldest
    elif workers:
        text = f"`import torch` was timed on none of {len(workers)} workers within 7 days"
        yield "STO-3", Score.NOT_RUN, text, None


def _of_collectives(workers: Sequence[NodeFacts], now: datetime) -> Iterator[Found]:
    for checks, what in ((NCCL, "of GPUs (NCCL)"), (GLOO, "of processors (gloo), not of GPUs")):
        nodes, failed, values, oldest = _measured(workers, checks, "GB/s", now)
        if nodes:
            text = f"all-reduces {what} had {_range(values, 'GB/s')} on {nodes} of {len(workers)} workers"
            text += f", {failed} of them below the limit" if failed else ""
            score = Score.FAIL if failed == nodes else Score.PARTIAL
            yield "NET-3", score, f"{text}; 64 MiB alone, and no more than two nodes", oldest
            return
    if workers:
        text = f"no collective was measured between {len(workers)} workers within 7 days"
        yield "NET-3", Score.NOT_RUN, text, None


def _of_gpu_use(jobs: int, known: int, simulated: int, now: datetime) -> Found:
    if not jobs:
        return "MON-6", Score.NOT_RUN, "no job with GPUs was there to look at", None
    text = f"the use of GPUs is known of {known} of {jobs} jobs that were looked at"
    text += f", {simulated} of them with simulated GPUs" if simulated else ""
    text += "; who may profile is not on record"
    return ("MON-6", Score.PARTIAL, text, now) if known > simulated else ("MON-6", Score.NOT_RUN, text, None)


def _measured(
    workers: Sequence[NodeFacts], checks: Sequence[str], unit: str, now: datetime
) -> tuple[int, int, list[float], datetime | None]:
    """Return on how many workers one of these checks measured something within a week, on how many it failed,
    what was measured, and when first."""
    found = [
        [each for check in checks if (each := node.results.get(check)) is not None and each.at is not None]
        for node in workers
    ]
    recent = [
        [each for each in several if each.status in MEASURED and each.at and now - each.at <= WEEK]
        for several in found
    ]
    every = [each for several in recent for each in several]
    values = [value for each in every if (value := _number(each.sample, unit)) is not None]
    failed = sum(any(each.status == "fail" for each in several) for several in recent)
    oldest = min((each.at for each in every if each.at), default=None)
    return sum(map(bool, recent)), failed, values, oldest


def _number(sample: str, unit: str) -> float | None:
    """Return the first number with this unit, as checks print them."""
    match = re.search(rf"(?<![\w.,])(\d[\d,]{{0,14}}(?:\.\d{{1,9}})?) {re.escape(unit)}(?!\w)", sample[:300])
    return float(match[1].replace(",", "")) if match else None


def _range(values: Sequence[float], unit: str) -> str:
    if not values:
        return f"no number of {unit}"
    low, high = min(values), max(values)
    return f"{low:,.4g} {unit}" if low == high else f"{low:,.4g} to {high:,.4g} {unit}"
