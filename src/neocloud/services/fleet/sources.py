"""The sources of verdicts that need nothing on the node: what the engine and Slurm say of a worker, and the
figures that its cluster measures on it."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from neocloud.core.clock import Clock
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.service import Dependencies
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.fleet.policy.actions import Action
from neocloud.services.fleet.types import Check, plain
from neocloud.services.slurm.public import Measurement, Worker, WorkerNodes, WorkersUnreachable

VERSION = "1"
MEASURE_SECONDS = 20.0
"""How long the measurement of a node may take."""
MEASURE_EVERY = 60.0
MEASURE_AGAIN = 10.0
"""After a measurement without an answer."""
MEASURED_AT_ONCE = 8
START_SECONDS = 60.0
"""How long the slurmd of a new pod may take to register."""


def verdict_id() -> str:
    return f"verdict-{secrets.token_hex(4)}"


class PoolWakes:
    """Wakes the pools of a cluster for what a source finds in the background: one whose nodes are all well is
    looked at seldom. Knows the pools by their last runs."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._pools: defaultdict[str, set[str]] = defaultdict(set)

    @classmethod
    def of(cls, dependencies: Dependencies) -> "PoolWakes":
        return cls(dependencies.provided.get(Wakes))

    def note(self, cluster_id: str, pool_id: str) -> None:
        self._pools[cluster_id].add(pool_id)

    def forget(self, cluster_id: str) -> None:
        self._pools.pop(cluster_id, None)

    def wake(self, cluster_id: str) -> None:
        """Look at the nodes of a cluster now."""
        self._wakes.wake(*self._pools.get(cluster_id, ()))


class EngineAndSlurm:
    """A `VerdictSource`: does the worker's pod run, and does its slurmd answer?"""

    async def verdicts(self, cluster_id: str, workers: Sequence[Worker], now: float) -> Sequence[Verdict]:
        return [each for worker in workers for each in (_pod(worker, now), *_slurm(worker, now))]

    def request(self, cluster_id: str, worker: str) -> None:
        """It looks at every worker each time."""

    def forget(self, cluster_id: str) -> None:
        """Nothing runs."""


def _pod(worker: Worker, now: float) -> Verdict:
    status = Status.PASS if worker.boot else Status.FAIL
    sample = "running" if worker.boot else plain(worker.problem)
    return _verdict(worker, now, Check.POD, status, sample, "running", "engine", is_fatal=not worker.boot)


def _slurm(worker: Worker, now: float) -> Iterator[Verdict]:
    """No verdict of a worker that is starting, nor of one that Slurm still waits for."""
    sample = plain("+".join(sorted(worker.states)) or "not known to Slurm")
    is_lost = worker.is_registered and {"DOWN", "NOT_RESPONDING"} <= worker.states
    has_started = worker.started_at is not None and now >= worker.started_at.timestamp() + START_SECONDS
    if worker.is_responding or is_lost:
        status = Status.FAIL if is_lost else Status.PASS
    elif has_started and (not worker.is_registered or "INVALID_REG" in worker.states):
        status = Status.UNKNOWN
    else:
        return
    yield _verdict(worker, now, Check.SLURM, status, sample, "responds", "slurmctld", is_fatal=is_lost)


def _verdict(
    worker: Worker,
    at: float,
    check: str,
    status: Status,
    sample: str,
    threshold: str,
    source: str,
    *,
    is_fatal: bool = False,
) -> Verdict:
    return Verdict(
        *(at, worker.name, verdict_id(), str(check), status, worker.boot),
        *(sample, threshold, source, VERSION, Action.REBOOT),
        is_fatal=is_fatal,
    )


@dataclass
class _Node:
    """The state of one worker."""

    began: float = float("-inf")
    boot: str = ""
    found: Sequence[Measurement] = ()
    problem: str = ""
    has_answer: bool = False
    running: asyncio.Task[None] | None = None
    is_requested: bool = False

    def due_in(self, now: float) -> float:
        every = MEASURE_AGAIN if self.problem else MEASURE_EVERY
        if self.running is not None:
            return every
        return 0.0 if self.is_requested else self.began + every - now


@dataclass
class Measurements:
    """A `VerdictSource`: processors, memory and GPUs of a worker against its preset, each minute."""

    workers: WorkerNodes
    clock: Clock
    changed: Callable[[str], None] = lambda cluster_id: None
    """Called when a measurement of a worker of this cluster says something new."""
    _nodes: dict[tuple[str, str], _Node] = field(default_factory=dict[tuple[str, str], _Node])
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MEASURED_AT_ONCE))

    async def verdicts(self, cluster_id: str, workers: Sequence[Worker], now: float) -> Sequence[Verdict]:
        found: list[Verdict] = []
        for worker in workers:
            node = self._nodes.setdefault((cluster_id, worker.name), _Node())
            is_due = node.boot != worker.boot or node.due_in(now) <= 0
            if node.running is None and is_due and worker.boot:
                node.is_requested = False
                node.running = asyncio.create_task(self._measure(cluster_id, worker, node))
            if node.has_answer and node.boot == worker.boot:
                found += _measured(worker, node)
        return found

    def due_in(self, cluster_id: str, workers: Sequence[Worker], now: float) -> float:
        nodes = (self._nodes.get((cluster_id, each.name)) for each in workers if each.boot)
        return min((each.due_in(now) for each in nodes if each is not None), default=inf)

    def request(self, cluster_id: str, worker: str) -> None:
        self._nodes.setdefault((cluster_id, worker), _Node()).is_requested = True

    def forget(self, cluster_id: str) -> None:
        for key in [key for key in self._nodes if key[0] == cluster_id]:
            node = self._nodes.pop(key)
            if node.running is not None:
                node.running.cancel()

    async def _measure(self, cluster_id: str, worker: Worker, node: _Node) -> None:
        try:
            async with self._room:
                began = self.clock.now().timestamp()
                found, problem = await self._answer(cluster_id, worker.name)
            known = (node.has_answer, node.boot, node.problem, _results(node.found))
            node.began, node.boot, node.found, node.problem = began, worker.boot, found, problem
            node.has_answer = True
        finally:
            node.running = None
        if known != (True, worker.boot, problem, _results(found)):
            self.changed(cluster_id)

    async def _answer(self, cluster_id: str, name: str) -> tuple[Sequence[Measurement], str]:
        try:
            return await self.workers.measure(cluster_id, name, MEASURE_SECONDS), ""
        except WorkersUnreachable as error:
            return (), plain(str(error))


def _results(found: Sequence[Measurement]) -> Sequence[tuple[str, bool]]:
    return [(each.check, each.passed) for each in found]


def _measured(worker: Worker, node: _Node) -> list[Verdict]:
    answered = Status.UNKNOWN if node.problem else Status.PASS
    sample = node.problem or f"{len(node.found)} figures"
    threshold = f"within {MEASURE_SECONDS:g} s"
    verdicts = [_verdict(worker, node.began, Check.REPORT, answered, sample, threshold, "node report")]
    for each in node.found:
        status = Status.PASS if each.passed else Status.FAIL
        sample, threshold = plain(each.sample), plain(each.threshold)
        verdicts.append(_verdict(worker, node.began, each.check, status, sample, threshold, "node report"))
    return verdicts
