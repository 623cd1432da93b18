"""A source of verdicts that tests idle workers: it chooses them, runs the checks beside Slurm, and keeps what
they found.

The checks take no place in Slurm's queue, so a job starts on the worker when it would without them. The
program on the worker sees the job's first process and ends all load at once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Store
from neocloud.fleet.active import catalogue as checks
from neocloud.fleet.active.cohort import CohortResult
from neocloud.fleet.active.judge import CheckedBoot, verdict
from neocloud.fleet.active.pairing import choose_pairs
from neocloud.fleet.active.schedule import CheckHistory, Choice, choose
from neocloud.fleet.agent.document import NotRun
from neocloud.fleet.control.judging import judging, wanted_tests
from neocloud.fleet.nodes.events import Phase, Status, Verdict
from neocloud.fleet.policy.limits import DAY
from neocloud.messages.neocloud.fleet.v1 import NodePool
from neocloud.services.fleet.checks.programs import CheckPrograms
from neocloud.services.fleet.checks.run_record import Run
from neocloud.services.fleet.checks.runs import CheckRuns, NodeRuns, PoolRuns
from neocloud.services.fleet.logs.node_logs import NodeLogs, PoolLog
from neocloud.services.fleet.sources import PoolWakes
from neocloud.services.fleet.types import drain_owner, plain
from neocloud.services.slurm.public import NODE_POOL, Worker, WorkerNodes

SETTLED_SECONDS = 60.0
"""After the start of a worker: its cluster is being set up, or its job is about to run again there."""
NOT_IDLE = frozenset(
    {"ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "POWERED_DOWN", "POWERING_DOWN"}
)


TESTED_IN = frozenset({Phase.IN_SERVICE, Phase.SUSPECT, Phase.READY_SPARE})
"""Phases of nodes that are tested. In others a node is repaired or verified, and may start again; in triage
one is tested where that judges the verdict that it was drained for."""


@dataclass
class ActiveChecks:
    """Implements `VerdictSource`."""

    store: Store
    clock: Clock
    runs: CheckRuns
    nodes: NodeLogs
    programs: CheckPrograms
    changed: Callable[[str], None] = lambda cluster_id: None
    """Called when a test of a worker of this cluster has ended."""
    _running: dict[tuple[str, str], asyncio.Task[None]] = field(
        default_factory=dict[tuple[str, str], asyncio.Task[None]]
    )

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ActiveChecks":
        provided = dependencies.provided
        workers, runs, nodes = provided.get(WorkerNodes), provided.get(CheckRuns), provided.get(NodeLogs)
        changed = provided.get(PoolWakes).wake
        return cls(dependencies.store, dependencies.clock, runs, nodes, CheckPrograms(workers), changed)

    async def verdicts(self, cluster_id: str, workers: Sequence[Worker], now: float) -> Sequence[Verdict]:
        pool = await self._pool(cluster_id, workers[0].node_set) if workers else None
        if pool is None:
            return []
        known = await self.runs.read_among_like(pool.metadata.id, now)
        log = await self.nodes.read(pool.metadata.id, pool.spec.wanted)
        histories = [
            history
            for each in workers
            if (history := self._history(cluster_id, each, known, log, now)) is not None
        ]
        running = sum(1 for cluster, _ in self._running if cluster == cluster_id)
        by_name = {each.name: each for each in workers}
        chosen = choose(histories, running, now)
        for choice in chosen:
            worker = by_name[choice.node]
            self._start(pool.metadata.id, [worker], self._test(cluster_id, worker, choice), cluster_id)
        idle = {
            *(
                each.name
                for each in histories
                if each.is_idle and log.fleet.nodes[each.name].phase in TESTED_IN
            )
        } - {each.node for each in chosen}
        boots = {each.name: each.boot for each in workers}
        leaves = {name: state.leaf for name, state in log.fleet.nodes.items()}
        blames = list(known.pairs.said(boots, leaves, now).values())
        met = known.pairs.met
        for pair in choose_pairs(idle, len(workers), running + len(chosen), blames, met, now):
            ends = [by_name[name] for name in pair]
            self._start(pool.metadata.id, ends, self._test_pair(cluster_id, *ends), cluster_id)
        return [each for worker in workers for each in _verdicts(worker, known, boots, leaves, now)]

    def request(self, cluster_id: str, worker: str) -> None:
        """No verification waits for it."""

    def forget(self, cluster_id: str) -> None:
        for key in [key for key in self._running if key[0] == cluster_id]:
            self._running.pop(key).cancel()

    def _history(
        self, cluster_id: str, worker: Worker, known: PoolRuns, log: PoolLog, now: float
    ) -> CheckHistory | None:
        """Return what is known of a worker; None for one that is not tested now."""
        state = log.fleet.nodes.get(worker.name)
        if state is None:
            return None
        wanted = wanted_tests(judging(), log.failing.of(worker.name), state, now)
        if state.phase not in TESTED_IN and not (state.phase is Phase.TRIAGE and wanted):
            return None
        record = log.fleet.lemons.records.get(worker.name)
        return replace(
            known.history(worker.name, worker.boot),
            is_idle=is_idle(worker, now) and (cluster_id, worker.name) not in self._running,
            wanted=wanted,
            failures=record.failures if record else 0,
            days=(now - record.since) / DAY if record else 0.0,
        )

    async def _pool(self, cluster_id: str, node_set: str) -> NodePool | None:
        rows = await self.store.read(
            lambda tx: [row for row in tx.owned(cluster_id) if row.kind == NODE_POOL]
        )
        pools = (wire.message(row, NodePool) for row in rows)
        return next((pool for pool in pools if pool.spec.node_set == node_set), None)

    def _start(
        self, pool_id: str, workers: Sequence[Worker], work: Coroutine[object, None, Run], cluster_id: str
    ) -> None:
        """Run a test in the background, and keep what it found."""

        async def test() -> None:
            try:
                await self.runs.append(pool_id, await work)
            finally:
                for each in workers:
                    self._running.pop((cluster_id, each.name), None)
            self.changed(cluster_id)

        task = asyncio.create_task(test())
        self._running |= {(cluster_id, each.name): task for each in workers}

    async def _test(self, cluster_id: str, worker: Worker, choice: Choice) -> Run:
        at = self.clock.now().timestamp()
        report, problem = await self.programs.test(cluster_id, worker.name, choice.checks, at)
        return Run(worker.name, worker.boot, at, report, problem, hardware=worker.hardware)

    async def _test_pair(self, cluster_id: str, first: Worker, second: Worker) -> Run:
        at = self.clock.now().timestamp()
        report, problem = await self.programs.test_pair(cluster_id, first.name, second.name, at)
        return Run(first.name, first.boot, at, report, problem, second.name, second.boot)


def is_idle(worker: Worker, now: float) -> bool:
    """Return whether a worker can be tested: it runs without a job, and no other owner drained it."""
    has_settled = worker.started_at is not None and now >= worker.started_at.timestamp() + SETTLED_SECONDS
    is_free = not worker.is_busy and worker.job is None and not worker.states & NOT_IDLE
    is_others = worker.is_drained and bool(drain_owner(worker.reason))
    return worker.is_responding and has_settled and is_free and not is_others


def _verdicts(
    worker: Worker, known: PoolRuns, boots: Mapping[str, str], leaves: Mapping[str, str], now: float
) -> Iterator[Verdict]:
    """Return what the checks say of this start of a worker; suspects of pairs are not judged."""
    for answer, _ in known.pairs.answers(worker.name, boots, leaves, now):
        if isinstance(answer, Verdict) and answer.status is not Status.UNKNOWN:
            yield answer
    node = known.nodes.get(worker.name)
    for said, at, boot in list(node.said.values()) if node else ():
        if boot == worker.boot and node is not None:
            answer = with_cohort(said, at, boot, worker.name, known)
            if isinstance(answer, Verdict):
                yield answer


def with_cohort(said: Verdict | NotRun, at: float, boot: str, name: str, known: PoolRuns) -> Verdict | NotRun:
    """Return the answer of a check, or that of the cohort where it finds what the limits do not.

    Action and scope in the answer of the node's program are not used: they are those of the catalogue."""
    check = checks.find(said.check)
    if check is None:
        return NotRun(said.check, "This release does not know it")
    if isinstance(said, Verdict):
        said = replace(
            said, at=at, node=name, boot=boot, action=check.action, scope=check.scope, is_fatal=False
        )
        said = replace(said, sample=plain(said.sample), threshold=plain(said.threshold))
        if said.status is not Status.PASS:
            return said
    found, hardware = _of_node(name, known, check.name), known.nodes[name].hardware
    faults = [(device, each) for device, each in found if each.is_fault]
    if not found or (isinstance(said, Verdict) and not faults):
        return said
    status = Status.FAIL if faults else Status.PASS
    device, worst = min(faults or found, key=lambda each: each[1].distance.z)
    away, margin = worst.distance, f"{100 * check.margin:g}%"
    if (
        known.like.has_others and hardware
    ):  # what a tenant may see of a verdict says nothing of the others' values
        sample = f"{device} {'more' if faults else 'not more'} than {margin} worse than its like"
        threshold = f"like nodes with {hardware} in the cloud"
    else:
        sample = f"{device} {-100 * away.deficit:+.1f}% of the median {away.median:.4g} {check.unit}"
        sample += f", z {away.z:.1f}"
        threshold = f"z >= -4 or within {margin} of {away.members} alike"
    run = said.id.rpartition("-")[2] if isinstance(said, Verdict) else f"{at:.0f}"
    return verdict(check, status, sample.strip(), threshold, "its cohort", CheckedBoot(name, boot, at), run)


def _of_node(name: str, known: PoolRuns, check: str) -> list[tuple[str, CohortResult]]:
    members = known.compared()[check].members
    split = ((member.split("\t"), found) for member, found in members.items())
    return [(device, found) for (node, device, _), found in split if node == name]


def answers(node: NodeRuns, name: str, known: PoolRuns) -> list[tuple[Verdict | NotRun, float]]:
    """Return the last answer of each check of a node, from any start, in the order of the catalogue."""
    order = {each.name: place for place, each in enumerate(checks.catalogue())}
    said = sorted(node.said.items(), key=lambda each: order.get(each[0], len(order)))
    return [(with_cohort(answer, at, boot, name, known), at) for _, (answer, at, boot) in said]
