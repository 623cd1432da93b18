"""Metrics of Slurm for `/metrics`: nodes by state and jobs by state of each cluster.

States of nodes are those that the reconciler read last. Jobs are slurmctld's own counts, asked for as long as
somebody reads metrics: they cost the same however many jobs there are.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from neocloud.core import wire
from neocloud.core.metrics import PROJECT_LABEL, gauge
from neocloud.core.service import Dependencies
from neocloud.engines.base import EngineError
from neocloud.messages.neocloud.slurm.v1 import Cluster
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.slurmrestd import SlurmError
from neocloud.services.slurm.types import CLUSTER, USABLE_STATES, ClusterState

KEPT_SECONDS = 10.0
"""How long slurmctld's counts are kept, so that several readers ask it once."""
ASKED_AT_ONCE = 8
ANSWER_SECONDS = 2.0
_CLUSTER = (PROJECT_LABEL, "cluster", "cluster_name")
_QUEUE = {"jobs_pending": "pending", "jobs_running": "running"}
_SINCE_MIDNIGHT = {
    "jobs_submitted": "submitted",
    "jobs_started": "started",
    "jobs_completed": "completed",
    "jobs_canceled": "cancelled",
    "jobs_failed": "failed",
}
NODE_STATES = ("DOWN", "FAIL", "DRAIN", "POWERED_DOWN", "ALLOCATED", "MIXED", "COMPLETING", "IDLE")
"""The first of these that Slurm names for a node is its state here; "unknown" without any."""


def node_state(text: str) -> str:
    """Return one word for Slurm's states of a node, such as "IDLE+DRAIN"."""
    states = {"FAIL" if each == "FAILING" else each for each in text.split("+")}
    return next((state.lower() for state in NODE_STATES if state in states), "unknown")


@dataclass(frozen=True)
class _Answer:
    at: float
    counts: Mapping[str, int] | None
    """None: Slurm did not answer."""


class Queues:
    """slurmctld's counts of each cluster, kept for some seconds."""

    def __init__(self, access: SlurmAccess) -> None:
        self._access = access
        self._known: dict[str, _Answer] = {}
        self._room = asyncio.Semaphore(ASKED_AT_ONCE)

    @classmethod
    def of(cls, dependencies: Dependencies) -> "Queues":
        return cls(SlurmAccess.of(dependencies))

    async def read(self, cluster_ids: Iterable[str]) -> Mapping[str, Mapping[str, int] | None]:
        ids = tuple(cluster_ids)
        for gone in self._known.keys() - set(ids):
            del self._known[gone]
        await asyncio.gather(*(self._refresh(each) for each in ids))
        return {each: self._known[each].counts for each in ids}

    async def _refresh(self, cluster_id: str) -> None:
        known = self._known.get(cluster_id)
        if known is not None and time.monotonic() - known.at < KEPT_SECONDS:
            return
        async with self._room:
            counts = await self._ask(cluster_id)
        self._known[cluster_id] = _Answer(time.monotonic(), counts)

    async def _ask(self, cluster_id: str) -> Mapping[str, int] | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._access.api(cluster_id) as slurm:
                return await slurm.statistics()
        except (SlurmError, EngineError, TimeoutError):
            return None


async def metrics(dependencies: Dependencies) -> Iterable[Metric]:
    rows = [
        row for row in await dependencies.store.read(lambda tx: tx.list(CLUSTER)[0]) if not row.deleted_at
    ]
    usable = [row.id for row in rows if row.state in USABLE_STATES]
    queues = await dependencies.provided.get(Queues).read(usable)
    clusters = gauge("neocloud_slurm_cluster_state", "1 for the state of a cluster.", (*_CLUSTER, "state"))
    nodes = gauge("neocloud_slurm_nodes", "Nodes by Slurm's state.", (*_CLUSTER, "state"))
    answers = gauge("neocloud_slurm_up", "Whether slurmctld answers.", _CLUSTER)
    jobs = gauge("neocloud_slurm_jobs", "Jobs that wait or run.", (*_CLUSTER, "state"))
    events = CounterMetricFamily(
        "neocloud_slurm_job_events",
        "Jobs that were submitted, started or ended; slurmctld counts from 0 again each midnight UTC.",
        labels=(*_CLUSTER, "event"),
    )
    cycle = gauge("neocloud_slurm_schedule_seconds", "How long the last scheduling cycle took.", _CLUSTER)
    for row in rows:
        labels = (row.parent_id, row.id, row.name)
        clusters.add_metric((*labels, ClusterState(row.state).value.lower()), 1)
        message = wire.message(row, Cluster)
        counted = Counter(node_state(node.slurm_state) for node in message.status.nodes)
        for state in (*(each.lower() for each in NODE_STATES), "unknown"):
            nodes.add_metric((*labels, state), counted[state])
        if row.id not in queues:
            continue
        counts = queues[row.id]
        answers.add_metric(labels, counts is not None)
        if counts is not None:
            for name, state in _QUEUE.items():
                jobs.add_metric((*labels, state), counts[name])
            for name, event in _SINCE_MIDNIGHT.items():
                events.add_metric((*labels, event), counts[name])
            cycle.add_metric(labels, counts["schedule_cycle_last"] / 1e6)
    return (clusters, nodes, answers, jobs, events, cycle)
