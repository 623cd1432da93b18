"""The loop of the hosts: look, record what is new, decide, append the decisions; nothing is done to a host.

The decisions and their limits are those of workers, except for repairs: no step is started on a host, where
the control plane itself runs, and which other tenants use. A host that is drained takes nothing new; what
runs there continues, so it is drained at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from neocloud.core import contract, wire
from neocloud.core.clock import Clock
from neocloud.core.kind import FINALIZER
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    RESYNC_SECONDS,
    RETRY_SECONDS,
    Context,
    ReconcileResult,
    Step,
)
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.fleet.control.controller import decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event, Phase, Status, Verdict
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.actions import Action
from neocloud.messages.neocloud.fleet.v1 import DrainedHost, HostPool, HostPoolStatus
from neocloud.services.compute.public import HOST_POOL, MAINTENANCE
from neocloud.services.fleet.logs.node_logs import NodeLogs, PoolLog
from neocloud.services.fleet.node_agents import AGENT, NodeAgents, host_agents
from neocloud.services.fleet.public import LEAF_LABEL, RACK_LABEL, Host, HostNodes, HostsUnreachable
from neocloud.services.fleet.reconcile.maintenance import window_events
from neocloud.services.fleet.reconcile.observe import new_inventories, new_verdicts
from neocloud.services.fleet.reconcile.pool_scope import PoolScope
from neocloud.services.fleet.render import drained_host
from neocloud.services.fleet.rules import Window, maintenance_windows, seconds_to_window, windows_of
from neocloud.services.fleet.types import (
    CLUSTER_OWNER,
    HOST_LIMITS,
    HOST_POOL_ID_PREFIX,
    MAINTENANCE_WINDOW,
    PoolState,
)
from neocloud.services.iam.types import operators_tenant_id
from neocloud.services.slurm.public import NODE_POOL
from neocloud.services.slurm.types import CLUSTER

UNSETTLED_SECONDS = 1.0
"""While a host is verified."""
ROUND_SECONDS = 100.0
"""In which the agent has run each of its probes. Its earlier answers do not prove that a fault is gone."""
LEFT = "it is not among the hosts of this cloud any more"
MOVING = frozenset({Phase.DRAINING, Phase.DRAINED, Phase.VERIFYING, Phase.BURN_IN, Phase.READY_SPARE})


@dataclass
class HostPoolScope(PoolScope[HostPool]):
    hosts: Sequence[Host] = ()
    is_seen: bool = False
    """Whether the hosts could be looked at."""
    verdicts: Sequence[Verdict] = ()
    windows: Sequence[Window] = ()
    """Maintenance windows of the hosts that are not over."""
    followers: frozenset[str] = frozenset()
    """Components that act on which hosts are drained, where that has changed."""

    def is_quiet(self) -> bool:
        """Return whether all hosts are well and nothing waits."""
        phases = self.known.fleet.phases
        is_well = not any(phases[each] for each in Phase if each is not Phase.IN_SERVICE)
        return is_well and not self.held and all(each.status is Status.PASS for each in self.verdicts)

    def drained(self, hosts: Iterable[str]) -> Sequence[DrainedHost]:
        nodes = self.known.fleet.nodes
        found = (drained_host(nodes[name]) for name in hosts if name in nodes)
        return [each for each in found if each is not None]


class HostPoolReconciler:
    kind = HOST_POOL

    def __init__(self, dependencies: Dependencies) -> None:
        self._clock = dependencies.clock
        self._logs = dependencies.provided.get(NodeLogs)
        self._hosts = dependencies.provided.get(HostNodes)
        wake = dependencies.provided.get(Wakes).wake
        self._agents: NodeAgents = host_agents(self._hosts, dependencies.clock, wake)

    async def scope(self, context: Context) -> HostPoolScope:
        return HostPoolScope(context, wire.message(context.resource, HostPool))

    def steps(self, scope: HostPoolScope) -> Sequence[Step[HostPoolScope]]:
        return (
            Step("Read the events", self._read),
            Step("Look at the hosts", self._look),
            Step("Record what is new", self._record),
            Step("Decide", self._decide),
            Step("End verifications", self._verify),
            Step("Find who follows", self._find_followers),
        )

    def delete_steps(self, scope: HostPoolScope) -> Sequence[Step[HostPoolScope]]:
        return (Step("Forget the agents", self._forget),)

    async def _read(self, scope: HostPoolScope) -> None:
        """First: what a person has drained or released holds also while the hosts cannot be looked at."""
        await scope.read(self._logs, RETRY_SECONDS)

    async def _look(self, scope: HostPoolScope) -> None:
        try:
            scope.hosts = await self._hosts.look()
        except HostsUnreachable as error:
            raise scope.blind(str(error), RETRY_SECONDS) from error
        scope.is_seen, scope.wanted = True, len(scope.hosts)
        scope.known.fleet.wanted = scope.wanted
        scope.verdicts = await self._agents.verdicts(scope.pool.metadata.id, scope.hosts, self._now())

    async def _record(self, scope: HostPoolScope) -> None:
        parts = self._agents.inventories(scope.pool.metadata.id, scope.hosts)
        found = new_host_events(scope.known, scope.hosts, scope.verdicts, self._now(), parts)
        await scope.append(self._logs, found)
        shadow = scope.known.fleet.breakers.in_shadow
        self._agents.recorded(scope.pool.metadata.id, [each.name for each in scope.hosts], shadow)
        now = self._clock.now()
        rows = await scope.context.list(MAINTENANCE_WINDOW)
        announced = maintenance_windows(await scope.context.list(MAINTENANCE), now, from_drain=False)
        for host in scope.hosts:
            mine = windows_of(rows, "", now, lambda name, host=host: frozenset({host.name} & {name}))
            states = [state for state in (scope.known.fleet.nodes.get(host.name),) if state is not None]
            scope.windows = [*scope.windows, *mine, *announced]
            await scope.append(self._logs, list(window_events(states, [*mine, *announced], now)))

    async def _decide(self, scope: HostPoolScope) -> None:
        plan = decide(scope.known.fleet, self._now())
        silent = {each.node: each for each in scope.verdicts if each.check == AGENT}
        scope.held = plan.held | {
            name: f"its agent says nothing: {each.sample}"
            for name, each in silent.items()
            if each.status is not Status.PASS
        }
        scope.reasons |= {each.event: each.why for each in plan.decisions}
        await scope.append(self._logs, [each.event for each in plan.decisions])

    async def _verify(self, scope: HostPoolScope) -> None:
        fleet, now = scope.known.fleet, self._now()
        found: list[Event] = []
        for host in scope.hosts:
            state = fleet.nodes.get(host.name)
            if state is None or state.running is None:
                continue
            ended = verification_ended(state, scope.verdicts, fleet.breakers.in_shadow, now)
            if ended is None:
                self._agents.request(scope.pool.metadata.id, host.name)
            else:
                found.append(ended)
        await scope.append(self._logs, found)

    async def _find_followers(self, scope: HostPoolScope) -> None:
        if list(scope.pool.status.drained) != scope.drained(sorted(each.name for each in scope.hosts)):
            rows = [*await scope.context.list(NODE_POOL), *await scope.context.list(CLUSTER)]
            scope.followers = frozenset(row.id for row in rows)

    async def _forget(self, scope: HostPoolScope) -> None:
        self._agents.forget(scope.pool.metadata.id)
        self._logs.forget(scope.pool.metadata.id)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def status(self, scope: HostPoolScope, result: ReconcileResult) -> ReconcileResult:
        state = scope.end(result)
        status = HostPoolStatus(
            state=HostPoolStatus.State.Value(state), problem=scope.problem, held=scope.held
        )
        names = sorted(each.name for each in scope.hosts) if scope.is_seen else scope.pool.status.hosts
        status.hosts.extend(names)
        if scope.log is None:  # decided steps continue
            status.drained.extend(scope.pool.status.drained)
        else:
            status.drained.extend(scope.drained(status.hosts))
        result = result.with_status(status, state, scope.next_run(self._seconds(scope)))
        return replace(result, wakes=result.wakes | scope.followers)

    def _seconds(self, scope: HostPoolScope) -> float:
        """Return when to look again. New words of an agent, and maintenance, wake the pool before."""
        if scope.is_in(MOVING):
            return UNSETTLED_SECONDS
        if scope.problem or scope.log is None or not scope.is_quiet():
            return RESYNC_SECONDS
        due = self._agents.due_in(scope.pool.metadata.id, scope.hosts, self._now())
        window = seconds_to_window(scope.windows, self._now())
        return max(UNSETTLED_SECONDS, min(IDLE_RESYNC_SECONDS, window, due))


def new_host_events(
    log: PoolLog,
    hosts: Sequence[Host],
    verdicts: Sequence[Verdict],
    now: float,
    inventories: Sequence[e.InventoryChanged] = (),
) -> list[Event]:
    """Return the events that follow from one look, those that change nothing left out. Pure."""
    draft = log.fleet.draft()
    found: list[Event] = []

    def add(events: Iterable[Event]) -> None:
        for event in events:
            if draft.apply(event):
                found.append(event)

    for host in hosts:
        add(_start(host, draft.nodes.get(host.name), now))
    add(new_inventories(draft, inventories, now))
    add(new_verdicts(log, draft, verdicts))
    seen = {host.name for host in hosts}
    for state in list(draft.nodes.values()):
        add(_presence(state, state.node in seen, now))
        add(_moves(draft.nodes[state.node], now))
    return found


def _start(host: Host, state: NodeState | None, now: float) -> Iterator[Event]:
    if state is None:
        rack, leaf = host.labels.get(RACK_LABEL, ""), host.labels.get(LEAF_LABEL, "")
        yield e.Registered(now, host.name, rack, leaf, Phase.DRAINED)
    if state is None or state.boot != host.boot:
        yield e.Booted(now, host.name, host.boot)


def _presence(state: NodeState, is_seen: bool, now: float) -> Iterator[Event]:
    has_left = any(hold.owner == CLUSTER_OWNER for hold in state.holds)
    if is_seen and has_left:
        yield e.DrainReleased(now, state.node, CLUSTER_OWNER)
    if not is_seen and not has_left:
        yield e.DrainRequested(now, state.node, CLUSTER_OWNER, LEFT)


def _moves(state: NodeState, now: float) -> Iterator[Event]:
    """Yield the moves of a host: it is drained and attached at once, since its workloads keep running and are
    not waited for.
    """
    if state.phase is Phase.DRAINING:
        yield e.Drained(now, state.node)
    if state.phase is Phase.READY_SPARE and state.reserved_for is not None and not state.is_attached:
        yield e.Attached(now, state.node)


def verification_ended(
    state: NodeState, verdicts: Sequence[Verdict], shadow: Callable[[str, Status], str], now: float
) -> Event | None:
    """Return how a verification ended by what the agent has said since it began; None while it waits."""
    running = state.running
    if running is None or running.action is not Action.NONE:
        return None
    is_suspected = bool(state.faults) or state.is_drained_by_us
    since = running.started_at + (ROUND_SECONDS if is_suspected else 0.0)
    fresh = {
        each.check: each
        for each in verdicts
        if each.node == state.node and each.at >= since and each.boot == state.boot
    }
    agent = fresh.pop(AGENT, None)
    if agent is None or agent.status is not Status.PASS or not fresh:
        return None
    every = [each for each in fresh.values() if not shadow(each.check, each.status)]
    if any(each.status is Status.UNKNOWN for each in every):
        return None
    passed = all(each.status is Status.PASS for each in every)
    until = now + HOST_LIMITS.certificate_term if passed else 0.0
    return e.VerificationEnded(now, state.node, running.number, passed=passed, valid_until=until)


async def ensure_host_pool(store: Store, clock: Clock) -> None:
    """Create the pool of hosts of a cloud whose hosts are watched, if there is none."""

    def ensure(tx: Transaction) -> None:
        if tx.list(HOST_POOL)[0]:
            return
        now = clock.now()
        tx.insert(
            Resource(
                id=contract.new_id(HOST_POOL_ID_PREFIX),
                kind=HOST_POOL,
                parent_id=operators_tenant_id(tx),
                name="hosts",
                created_at=now,
                updated_at=now,
                status=HostPoolStatus(state=HostPoolStatus.BLIND).SerializeToString(),
                state=PoolState.BLIND,
                finalizers=(FINALIZER,),
            )
        )

    await store.write(ensure)
