"""NodeService: health of nodes, for operators of the cloud alone.

Reading computes a node from its events. Drain, Release and Move append an event of the caller, in
the transaction of the call; the reconciler of the pool acts on it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neocloud.core import contract, wire
from neocloud.core.contract import ApiError
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import BadEvent, decode
from neocloud.fleet.nodes.events import Event, Phase
from neocloud.fleet.nodes.incidents import Incident
from neocloud.fleet.nodes.lifecycle import BY_HAND
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import OPERATOR_PREFIX, Outage
from neocloud.messages.nebius.compute.v1 import InstanceRecoveryPolicy, InstanceSpec
from neocloud.messages.neocloud.fleet.v1 import (
    DrainNodeRequest,
    GetNodeRequest,
    HostPool,
    ListNodeEventsRequest,
    ListNodeEventsResponse,
    ListNodesRequest,
    ListNodesResponse,
    MoveNodeRequest,
    Node,
    NodeEvent,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    ReleaseNodeRequest,
)
from neocloud.services.compute.public import HOST_POOL
from neocloud.services.compute.types import INSTANCE, InstanceState
from neocloud.services.fleet.logs.decision_log import log_decisions
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs, PoolLog, log_event
from neocloud.services.fleet.render import (
    Holders,
    drained_host,
    holders_of,
    host_advice,
    name_others,
    node_message,
)
from neocloud.services.fleet.types import plain
from neocloud.services.iam.types import operators_tenant_id
from neocloud.services.slurm.public import NODE_POOL

PERMISSION = "fleet.nodes"
PHASES_BY_HAND = frozenset[str]().union(*BY_HAND.values())
"""Phases that people move nodes to."""
SERVICE_NAME = "neocloud.fleet.v1.NodeService"
MOST_EVENTS = 500


@dataclass(frozen=True)
class Pool:
    row: Resource
    message: NodePool
    """The message of a pool of hosts: what it has in common with one of workers."""
    cluster_name: str
    is_of_hosts: bool = False

    def id_of(self, node: str) -> str:
        return node if self.is_of_hosts else f"{self.message.spec.cluster_id}/{node}"


async def get(call: Call, request: GetNodeRequest) -> Node:
    pool, log, state = await find_node(call, request.id, "get")
    found = node_of(call, pool, log, state, await _machines(call) if pool.is_of_hosts else {})
    name_others(found, await _holders(call, "get"))
    return found


async def _holders(call: Call, verb: str) -> Holders:
    pools = await pools_of(call, "", verb)
    return holders_of([(pool.message.spec.cluster_id, (await fold_of(call, pool)).fleet) for pool in pools])


async def list_nodes(call: Call, request: ListNodesRequest) -> ListNodesResponse:
    found: list[Node] = []
    for pool in await pools_with_hosts(call, request.cluster_id, "list"):
        log = await fold_of(call, pool)
        machines = await _machines(call) if pool.is_of_hosts else dict[bool, int]()
        found += [node_of(call, pool, log, state, machines) for state in log.fleet.nodes.values()]
    scope = f"{SERVICE_NAME}/{request.cluster_id}"
    items, token = contract.page(found, request, scope=scope, key=lambda node: node.id)
    if any(node.HasField("inventory") for node in items):
        holders = await _holders(call, "list")
        for node in items:
            name_others(node, holders)
    return ListNodesResponse(items=items, next_page_token=token)


async def list_events(call: Call, request: ListNodeEventsRequest) -> ListNodeEventsResponse:
    pool, _, state = await find_node(call, request.id, "get")
    scope = f"{SERVICE_NAME}/{request.id}/events"
    size = contract.page_size(request, default=100, most=MOST_EVENTS)
    after = int(contract.page_after(request.page_token, scope, numbers=1) or 0)
    found = await call.dependencies.store.read_long(  # old events are in archives
        lambda tx: tx.events(pool.row.id, subject=state.node, after=after, limit=size + 1)
    )
    items, more = found[:size], len(found) > size
    token = contract.page_token(str(items[-1].position), scope) if more else ""
    return ListNodeEventsResponse(items=[_event(each) for each in items], next_page_token=token)


async def drain(call: Call, request: DrainNodeRequest) -> Write[Node]:
    pool, log, state = await find_node(call, request.id, "update")
    reason = plain(request.reason)
    if not reason:
        raise contract.bad_field("reason", "has no printable text; write why the node is drained")
    owner = operator_name(call)
    if any(hold.owner == owner for hold in state.holds):
        raise contract.bad_state(request.id, f"You have drained {request.id} already. Release it first.")
    return _append(call, pool, log, state, lambda now: e.DrainRequested(now, state.node, owner, reason))


async def release(call: Call, request: ReleaseNodeRequest) -> Write[Node]:
    pool, log, state = await find_node(call, request.id, "update")
    owner = operator_name(call)
    if any(hold.owner == owner for hold in state.holds):
        return _append(call, pool, log, state, lambda now: e.DrainReleased(now, state.node, owner))
    if state.phase in (Phase.TRIAGE, Phase.RMA_RETURNED):
        return _append(call, pool, log, state, lambda now: e.Moved(now, state.node, Phase.BURN_IN, owner))
    others = ", ".join(hold.owner for hold in state.holds)
    why = f"It is drained by {others}, who alone can release it." if others else "It is not drained."
    raise contract.bad_state(request.id, f"{request.id} is not drained by you. {why}")


async def move(call: Call, request: MoveNodeRequest) -> Write[Node]:
    pool, log, state = await find_node(call, request.id, "update")
    reason, owner = plain(request.reason), operator_name(call)
    if not reason:
        raise contract.bad_field("reason", "has no printable text; write why the node is moved")
    if request.phase not in PHASES_BY_HAND:
        names = ", ".join(sorted(PHASES_BY_HAND))
        raise contract.bad_field("phase", f"is none that people move nodes to: {names}")
    to = Phase(request.phase)
    possible = sorted(BY_HAND.get(state.phase, frozenset()))
    if to not in possible:
        ways = f"From there it can be moved to {', '.join(possible)}." if possible else _no_way(state)
        raise contract.bad_state(request.id, f"{request.id} is {state.phase.value}. {ways}")
    return _append(call, pool, log, state, lambda now: e.Moved(now, state.node, to, owner, reason))


def _no_way(state: NodeState) -> str:
    if state.phase is Phase.RETIRED:
        return "It is permanently out of the fleet."
    return "Drain it first, and wait until no job runs on it: neo fleet node drain."


def _append(
    call: Call, pool: Pool, log: PoolLog, state: NodeState, event: Callable[[float], Event]
) -> Write[Node]:
    made: list[Event] = []

    def work(tx: Transaction) -> Node:
        now = call.dependencies.clock.now()
        made[:] = [event(now.timestamp())]
        tx.append_event(pool.row.id, log_event(*made))
        tx.enqueue(pool.row.id, now)
        return node_of(call, pool, log, state)

    async def complete(_: Node) -> Node:
        known = await fold_of(call, pool)
        return node_of(call, pool, known, known.fleet.nodes[state.node])

    cluster_id = "" if pool.is_of_hosts else pool.message.spec.cluster_id
    return Write(work, after_commit=lambda: log_decisions(cluster_id, made), complete=complete)


def operator_name(call: Call) -> str:
    """Return the caller as events name an operator."""
    return f"{OPERATOR_PREFIX}{call.subject.id if call.subject else ''}"


async def find_node(call: Call, node_id: str, verb: str) -> tuple[Pool, PoolLog, NodeState]:
    """Return a node with its pool. Raises ApiError, also unless the caller is an operator."""
    cluster_id, _, name = node_id.rpartition("/")
    pools = await pools_of(call, cluster_id, verb)
    for pool in pools if cluster_id else await _host_pools(call):
        log = await fold_of(call, pool)
        if name in log.fleet.nodes:
            return pool, log, log.fleet.nodes[name]
    raise contract.not_found("node", node_id)


async def pools_of(call: Call, cluster_id: str, verb: str) -> Sequence[Pool]:
    """Return the pools of one cluster, or of all. Raises ApiError unless the caller is an operator."""

    def read(tx: Transaction) -> list[Pool]:
        if call.subject is None or call.subject.tenant_id != operators_tenant_id(tx):
            raise contract.permission_denied(
                f"{PERMISSION}.{verb}", "", "Only an operator of this cloud can see and drain nodes."
            )
        return list(_read_pools(tx, cluster_id))

    return await call.dependencies.store.read(read)


async def pools_with_hosts(call: Call, cluster_id: str, verb: str) -> Sequence[Pool]:
    """Return the pools of one cluster, or of all and those of hosts. Raises ApiError as `pools_of`."""
    found = await pools_of(call, cluster_id, verb)
    return found if cluster_id else [*found, *await _host_pools(call)]


def _read_pools(tx: Transaction, cluster_id: str) -> Iterable[Pool]:
    rows = tx.owned(cluster_id) if cluster_id else tx.list(NODE_POOL)[0]
    for row in rows:
        if row.kind == NODE_POOL:
            message = wire.message(row, NodePool)
            cluster = tx.get(message.spec.cluster_id)
            yield Pool(row, message, cluster.name if cluster else "")


async def _host_pools(call: Call) -> Sequence[Pool]:
    """Return the pools of hosts. The caller is known to be an operator."""

    def read(tx: Transaction) -> list[Pool]:
        found: list[Pool] = []
        for row in tx.list(HOST_POOL)[0]:
            status = wire.message(row, HostPool).status
            message = NodePool(
                spec=NodePoolSpec(wanted=len(status.hosts)),
                status=NodePoolStatus(problem=status.problem, held=status.held),
            )
            found.append(Pool(row, message, "", is_of_hosts=True))
        return found

    return await call.dependencies.store.read(read)


async def _machines(call: Call) -> Mapping[bool, int]:
    """Return how many virtual machines run, by whether their recovery policy lets them start elsewhere."""
    rows = await call.dependencies.store.read(lambda tx: tx.list(INSTANCE)[0])
    fail = InstanceRecoveryPolicy.Value("FAIL")
    running = (row for row in rows if row.state in (InstanceState.RUNNING, InstanceState.STARTING))
    return Counter(InstanceSpec.FromString(row.spec).recovery_policy != fail for row in running)


async def fold_of(call: Call, pool: Pool) -> PoolLog:
    try:
        logs = call.dependencies.provided.get(NodeLogs)
        return await logs.read(pool.row.id, pool.message.spec.wanted)
    except BrokenLog as error:
        text = f"The events of the nodes cannot be read: {error}. Upgrade Neocloud, or restore its database."
        raise ApiError(contract.Code.DATA_LOSS, text) from error


def node_of(
    call: Call, pool: Pool, log: PoolLog, state: NodeState, machines: Mapping[bool, int] | None = None
) -> Node:
    incident = log.incidents.by_node.get(state.node)
    outages = outages_of(pool, log, incident) if incident else ()
    node = node_message(state, incident, call.dependencies.clock.now(), outages)
    spec, status = pool.message.spec, pool.message.status
    node.id, node.cluster_id, node.node_set = pool.id_of(state.node), spec.cluster_id, spec.node_set
    node.cluster_name = pool.cluster_name
    node.held, node.problem = status.held.get(state.node, ""), status.problem
    node.kind = Node.HOST if pool.is_of_hosts else Node.WORKER
    if pool.is_of_hosts:
        open_hosts = sum(drained_host(each) is None for each in log.fleet.nodes.values())
        node.advice = host_advice(state, machines or {}, open_hosts)
    return node


def outages_of(pool: Pool, log: PoolLog, incident: Incident) -> Sequence[Outage]:
    """Return the times of an incident for which a tenant is not charged: no tenant is charged for a host."""
    return () if pool.is_of_hosts else log.outages.of(incident.node, incident.evidence)


def _event(entry: LogEvent) -> NodeEvent:
    try:
        name = type(decode(entry.body)).__name__
    except BadEvent:
        name = "unreadable"
    found = NodeEvent(position=entry.position, node=entry.subject, type=name)
    found.at.FromDatetime(entry.at)
    found.json = entry.body.decode(errors="replace")
    return found


METHODS = (
    Method(f"{SERVICE_NAME}/Get", get, f"{PERMISSION}.get"),
    Method(f"{SERVICE_NAME}/List", list_nodes, f"{PERMISSION}.list"),
    Method(f"{SERVICE_NAME}/ListEvents", list_events, f"{PERMISSION}.get"),
    Method(f"{SERVICE_NAME}/Drain", drain, f"{PERMISSION}.update", is_change=True),
    Method(f"{SERVICE_NAME}/Release", release, f"{PERMISSION}.update", is_change=True),
    Method(f"{SERVICE_NAME}/Move", move, f"{PERMISSION}.update", is_change=True),
)
