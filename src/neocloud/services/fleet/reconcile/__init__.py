"""The loop of a pool: look, record what is new, decide, append the decisions, and only then act.

A run holds the lease of its pool, so one process at a time decides. Each decision is an event of the log
before anything is done; a run that finds an event not acted on acts on it. An engine, Slurm or log that does
not answer ends the run before any decision.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import (
    RETRY_SECONDS,
    Context,
    ReconcileResult,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import StaleVersion
from neocloud.fleet.control.breakers import Breakers
from neocloud.fleet.control.controller import decide
from neocloud.fleet.control.judging import IndependentTest, Judging, MeansOfTest, judgements, judging
from neocloud.fleet.nodes.events import Event, Judged, Phase, Status, Verdict
from neocloud.messages.neocloud.fleet.v1 import NodePool, NodePoolStatus
from neocloud.services.compute.public import HOST_POOL, MAINTENANCE, drained_hosts
from neocloud.services.fleet.checks.records import CheckRecords
from neocloud.services.fleet.logs.fleet_breaker import claim, claims, is_own_drain, room, within_room
from neocloud.services.fleet.logs.node_logs import NodeLogs, PoolLog
from neocloud.services.fleet.public import (
    BackgroundSources,
    InventorySource,
    RecordedSource,
    TimedSource,
    VerdictSources,
)
from neocloud.services.fleet.reconcile import act
from neocloud.services.fleet.reconcile.maintenance import (
    host_drain_events,
    keep_reservations,
    names_on,
    window_events,
)
from neocloud.services.fleet.reconcile.observe import new_events, stop_events
from neocloud.services.fleet.reconcile.pool_scope import PoolScope
from neocloud.services.fleet.rules import Window, maintenance_windows, seconds_to_window, windows_of
from neocloud.services.fleet.sources import PoolWakes
from neocloud.services.fleet.types import LIMITS, MAINTENANCE_WINDOW, PoolState
from neocloud.services.slurm.public import NODE_POOL, Worker, WorkerNodes, WorkersUnreachable


def judged(log: PoolLog, rules: Judging, verdicts: Iterable[Verdict], now: float) -> list[Judged]:
    """Return the judgements that follow from the last answers of all checks."""
    answers = {(each.node, each.check): each for each in sorted(verdicts, key=lambda each: each.at)}
    may_judge = partial(is_reliable, log.fleet.breakers)
    return [
        found
        for node in log.failing.nodes
        if (state := log.fleet.nodes.get(node)) is not None
        for found in judgements(rules, log.failing.of(node), state, answers, may_judge, now)
    ]


def is_reliable(breakers: Breakers, test: IndependentTest) -> bool:
    """Return whether a test may judge: a measurement that may drain nodes itself; an active check, which has
    limits with a source, unless it was found to be wrong too often.
    """
    if test.kind is MeansOfTest.MEASUREMENT:
        return not breakers.in_shadow(test.check)
    return breakers.precision(test.check).judged < breakers.limits.judged_minimum or not breakers.in_shadow(
        test.check
    )


WATCH_SECONDS = 5.0
"""Until the next look while a node is not well, or something is held back. Each takes some milliseconds of
the server, Podman and Slurm."""
QUIET_SECONDS = 60.0
"""While all nodes are well. The end of a pod, a line of the controller's log, an answer of a source that says
something new, and maintenance wake the pool; this finds what was not told."""
DECIDE_TIMES = 5
UNSETTLED_SECONDS = 0.5
"""While a node is drained, repaired or verified."""
WELL = frozenset({Phase.IN_SERVICE, Phase.READY_SPARE})
MOVING = frozenset({Phase.DRAINING, Phase.DRAINED, Phase.REMEDIATING, Phase.VERIFYING, Phase.BURN_IN})


@dataclass
class NodePoolScope(PoolScope[NodePool]):
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    answers: Sequence[Sequence[Verdict]] = ()
    """One list for each source of verifications."""
    background: Sequence[Verdict] = ()
    windows: Sequence[Window] = ()
    """Maintenance windows of the cluster that are not over."""

    @property
    def is_quiet(self) -> bool:
        """Return whether all workers are well and nothing waits."""
        verdicts = (each for found in (*self.answers, self.background) for each in found)
        return (
            not self.held
            and not any(self.known.fleet.phases[each] for each in Phase if each not in WELL)
            and all(each.is_responding for each in self.workers.values())
            and all(each.status is Status.PASS for each in verdicts)
        )

    @property
    def cluster_id(self) -> str:
        return self.pool.spec.cluster_id


class PoolReconciler:
    kind = NODE_POOL

    def __init__(self, dependencies: Dependencies) -> None:
        self._clock, self._store = dependencies.clock, dependencies.store
        self._logs = dependencies.provided.get(NodeLogs)
        self._records = dependencies.provided.get(CheckRecords)
        self._workers = dependencies.provided.get(WorkerNodes)
        self._sources = dependencies.provided.get(VerdictSources)
        self._background = dependencies.provided.get(BackgroundSources)
        self._wakes = dependencies.provided.get(PoolWakes)
        self._unannounced: set[str] = set()
        """Pools for which Slurm is known to have no reservation for maintenance."""

    async def scope(self, context: Context) -> NodePoolScope:
        pool = wire.message(context.resource, NodePool)
        return NodePoolScope(context, pool, wanted=pool.spec.wanted)

    def steps(self, scope: NodePoolScope) -> Sequence[Step[NodePoolScope]]:
        return (
            Step("Read the events", self._read),
            Step("Look at the nodes", self._look),
            Step("Record what is new", self._record),
            Step("Decide", self._decide),
            Step("Act", self._act),
        )

    def delete_steps(self, scope: NodePoolScope) -> Sequence[Step[NodePoolScope]]:
        return (Step("End measurements", self._forget),)

    async def _read(self, scope: NodePoolScope) -> None:
        await scope.read(self._logs, RETRY_SECONDS)
        if scope.context.resource.state == PoolState.STOPPED:
            await scope.append(self._logs, stop_events(scope.known, self._now()))

    async def _look(self, scope: NodePoolScope) -> None:
        self._wakes.note(scope.cluster_id, scope.pool.metadata.id)
        try:
            seen = await self._workers.look(scope.cluster_id, scope.pool.spec.node_set)
        except WorkersUnreachable as error:
            raise scope.blind(str(error), RETRY_SECONDS) from error
        scope.workers = {worker.name: worker for worker in seen}
        now = self._now()
        scope.answers = [await each.verdicts(scope.cluster_id, seen, now) for each in self._sources]
        others = [await each.verdicts(scope.cluster_id, seen, now) for each in self._background]
        scope.background = [each for found in others for each in found]

    async def _record(self, scope: NodePoolScope) -> None:
        verdicts = [*(each for found in scope.answers for each in found), *scope.background]
        project, workers = scope.pool.metadata.parent_id, list(scope.workers.values())
        inventories = [
            each
            for source in (*self._sources, *self._background)
            if isinstance(source, InventorySource)
            for each in source.inventories(scope.cluster_id, workers)
        ]
        on_host = partial(names_on, workers)
        now = self._clock.now()
        rows = await scope.context.list(MAINTENANCE_WINDOW)
        of_host = maintenance_windows(await scope.context.list(MAINTENANCE), now, from_drain=True)
        scope.windows = [*windows_of(rows, scope.cluster_id, now, on_host), *of_host]
        found = new_events(
            *(scope.known, project, workers, verdicts, self._now(), inventories),
            is_host_maintained=any(each.is_under_way(now) for each in of_host),
        )
        await scope.append(self._logs, found)
        await scope.append(self._logs, judged(scope.known, judging(), verdicts, self._now()))
        await scope.append(self._logs, await self._records.changes(scope.known, self._now()))
        for source in self._sources:
            if isinstance(source, RecordedSource):
                shadow = scope.known.fleet.breakers.in_shadow
                source.recorded(scope.cluster_id, list(scope.workers), shadow)
        drained = drained_hosts(await scope.context.list(HOST_POOL))
        nodes = scope.known.fleet.nodes.values()
        begun = window_events(nodes, scope.windows, now)
        by_host = host_drain_events(nodes, drained, on_host, now.timestamp())
        await scope.append(self._logs, [*begun, *by_host])

    async def _decide(self, scope: NodePoolScope) -> None:
        for _ in range(DECIDE_TIMES):
            try:
                await self._decide_once(scope)
                return
            except StaleVersion:  # another server has decided for its pools, or somebody appended to this log
                await scope.read(self._logs, RETRY_SECONDS)
        raise scope.blind("others decide on drains all the time; it is tried again", RETRY_SECONDS)

    async def _decide_once(self, scope: NodePoolScope) -> None:
        now = self._now()
        plan = decide(scope.known.fleet, now)
        scope.held = plan.held
        decided = [each.event for each in plan.decisions]
        scope.reasons |= {each.event: each.why for each in plan.decisions}
        if not any(is_own_drain(event) for event in decided):
            await scope.append(self._logs, decided)
            return
        async with self._logs.deciding:
            seen = await self._store.read(lambda tx: claims(tx, now))
            allowed, held = within_room(decided, await self._room_for_drains())
            scope.held = {**plan.held, **held}
            has_drains = any(is_own_drain(event) for event in allowed)
            await scope.append(self._logs, allowed, (lambda tx: claim(tx, seen, now)) if has_drains else None)

    async def _room_for_drains(self) -> int:
        """Return how many nodes of the whole fleet may be drained now."""
        if self._now() < self._logs.closed_until:
            return 0
        pools = await self._logs.read_all()
        nodes = sum(len(pool.fleet.nodes) for pool in pools)
        found = room([pool.drains for pool in pools], nodes, LIMITS, self._now())
        self._logs.closed_until = found.closed_until
        return found.drains

    async def _act(self, scope: NodePoolScope) -> None:
        done: list[Event] = []
        try:
            for name, worker in scope.workers.items():
                state = scope.known.fleet.nodes.get(name)
                if state is None:
                    continue
                incident = scope.known.incidents.by_node.get(name)
                await act.follow(self._workers, scope.cluster_id, worker, state, incident)
                done += await act.repair(self._workers, scope.cluster_id, worker, state, self._now())
                done += act.verification(
                    *(self._sources, scope.cluster_id, worker, state, scope.answers, self._now()),
                    shadow=scope.known.fleet.breakers.in_shadow,
                )
                done += act.attached(worker, state, self._now())
            await self._announce(scope)
        except WorkersUnreachable as error:
            raise scope.blind(str(error), RETRY_SECONDS) from error
        finally:
            await scope.append(self._logs, done)

    async def _announce(self, scope: NodePoolScope) -> None:
        """Tell Slurm of maintenance windows. Without any, it is asked once for what is left of others."""
        windows = [each for each in scope.windows if each.end is not None]
        if windows or scope.known.id not in self._unannounced:
            workers = list(scope.workers.values())
            arguments = (scope.cluster_id, scope.pool.spec.node_set, workers, windows)
            scope.held |= await keep_reservations(self._workers, *arguments)
            self._unannounced.discard(scope.known.id)
            if not windows:
                self._unannounced.add(scope.known.id)

    async def _forget(self, scope: NodePoolScope) -> None:
        for source in (*self._sources, *self._background):
            source.forget(scope.cluster_id)
        self._wakes.forget(scope.cluster_id)
        self._logs.forget(scope.pool.metadata.id)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def status(self, scope: NodePoolScope, result: ReconcileResult) -> ReconcileResult:
        state = scope.end(result)
        status = NodePoolStatus(
            state=NodePoolStatus.State.Value(state), problem=scope.problem, held=scope.held
        )
        return result.with_status(status, state, scope.next_run(self._seconds(scope)))

    def _seconds(self, scope: NodePoolScope) -> float:
        """Return when to look again."""
        if scope.is_in(MOVING) or not scope.is_in(Phase):
            return UNSETTLED_SECONDS
        if scope.problem or not scope.is_quiet:
            return WATCH_SECONDS
        now, workers = self._now(), list(scope.workers.values())
        sources = [each for each in (*self._sources, *self._background) if isinstance(each, TimedSource)]
        due = [each.due_in(scope.cluster_id, workers, now) for each in sources]
        return max(UNSETTLED_SECONDS, min(QUIET_SECONDS, seconds_to_window(scope.windows, now), *due))
