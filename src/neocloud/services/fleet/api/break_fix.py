"""BreakFixService: requests for repairs, and the events of repairs, for tenants and operators.

Every request becomes an event of the node, or is refused with the reason. Tickets are the outages that the
controller drained a node for: nothing is kept beside the events of nodes.
"""

import secrets
from collections.abc import Mapping, Sequence

from neocloud.core import contract, wire
from neocloud.core.contract import ApiError
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import BadEvent, decode
from neocloud.fleet.nodes.events import OURS, Event, Phase
from neocloud.fleet.nodes.incidents import TICKET_EVIDENCE
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import OPERATOR_PREFIX, TENANT_PREFIX
from neocloud.fleet.nodes.repairs import Repair, RepairKind, all_repairs
from neocloud.messages.neocloud.fleet.v1 import (
    BreakFixEvent,
    BreakFixRequest,
    BreakFixResponse,
    ListBreakFixEventsRequest,
    ListBreakFixEventsResponse,
    NodePool,
)
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs, PoolLog, log_event
from neocloud.services.fleet.types import LIMITS, plain
from neocloud.services.iam.types import operators_tenant_id
from neocloud.services.slurm.public import NODE_POOL

SERVICE_NAME = "neocloud.fleet.v1.BreakFixService"
PAGE = 1000
DEFAULT_EVENTS = 100
CANNOT = {
    BreakFixRequest.Action.POWER_CYCLE: "a worker is a pod and has no power of its own",
    BreakFixRequest.Action.RESET_GPU: "a worker is a pod; its GPUs are reset with their host",
}
TYPES: Mapping[RepairKind, BreakFixEvent.Type] = {
    RepairKind.MAINTENANCE: BreakFixEvent.Type.MAINTENANCE,
    RepairKind.LEAVES: BreakFixEvent.Type.RETIREMENT_NOTICE,
    RepairKind.OPENED: BreakFixEvent.Type.REPAIR_TICKET_OPENED,
    RepairKind.UPDATED: BreakFixEvent.Type.REPAIR_TICKET_UPDATED,
    RepairKind.CLOSED: BreakFixEvent.Type.REPAIR_TICKET_CLOSED,
}


async def request(call: Call, request: BreakFixRequest) -> Write[BreakFixResponse]:
    return await _request(call, request, f"{TENANT_PREFIX}{call.subject.id if call.subject else ''}")


async def request_as_operator(call: Call, request: BreakFixRequest) -> Write[BreakFixResponse]:
    await _require_operator(call, "update")
    return await _request(call, request, f"{OPERATOR_PREFIX}{call.subject.id if call.subject else ''}")


async def list_events(call: Call, request: ListBreakFixEventsRequest) -> ListBreakFixEventsResponse:
    found: list[Repair] = []
    limit = request.limit or DEFAULT_EVENTS
    for row in await _pools(call, request.cluster_id):
        found += await _newest(call, row.id, limit, request.node)
    if request.node and not found:
        await _find(call, request)
    found.sort(key=lambda each: each.moment)
    return ListBreakFixEventsResponse(items=[_message(each) for each in found[-limit:]])


async def list_events_as_operator(
    call: Call, request: ListBreakFixEventsRequest
) -> ListBreakFixEventsResponse:
    await _require_operator(call, "get")
    return await list_events(call, request)


async def _request(call: Call, request: BreakFixRequest, owner: str) -> Write[BreakFixResponse]:
    if why := CANNOT.get(request.action):
        raise ApiError(contract.Code.UNIMPLEMENTED, f"{BreakFixRequest.Action.Name(request.action)}: {why}.")
    reason = plain(request.reason)
    if not reason:
        raise contract.bad_field("reason", "has no printable text; write why")
    row, log = await _find(call, request)
    state, now = log.fleet.nodes[request.node], call.dependencies.clock.now().timestamp()
    ticket = f"{TICKET_EVIDENCE}{secrets.token_hex(4)} {reason}"
    event = _event(request, log, state, now, owner, reason, ticket)

    def work(tx: Transaction) -> BreakFixResponse:
        made = log_event(event)
        tx.append_event(row.id, made)
        tx.enqueue(row.id, made.at)
        is_ticket = request.action == BreakFixRequest.Action.REPLACE
        return BreakFixResponse(ticket=ticket if is_ticket else "", phase=state.phase.value)

    async def complete(answer: BreakFixResponse) -> BreakFixResponse:
        _, known = await _find(call, request)
        answer.phase = known.fleet.nodes[request.node].phase.value
        return answer

    return Write(work, complete=complete)


def _event(
    request: BreakFixRequest, log: PoolLog, state: NodeState, now: float, owner: str, reason: str, ticket: str
) -> Event:
    """Return the event of a request. Raises ApiError for what cannot be done now."""
    is_held = any(hold.owner == owner for hold in state.holds)
    refusal = ""
    match request.action:
        case BreakFixRequest.Action.CORDON:
            event: Event = e.DrainRequested(now, state.node, owner, reason)
            refusal = "you have cordoned it already" if is_held else ""
        case BreakFixRequest.Action.UNCORDON:
            event = e.DrainReleased(now, state.node, owner)
            refusal = "" if is_held else "you have not cordoned it"
        case BreakFixRequest.Action.REPLACE:
            event = e.DrainRequested(now, state.node, OURS, ticket)
            refusal = _no_replacement(log, state, now)
        case _:
            event = e.Moved(now, state.node, Phase.TRIAGE, owner)
            if state.phase is not Phase.DRAINED or not is_held:
                refusal = f"cordon it, and wait until it is drained; it is {state.phase.value}"
    if refusal:
        raise contract.bad_state(request.cluster_id, f"{state.node}: {refusal}.")
    return event


def _no_replacement(log: PoolLog, state: NodeState, now: float) -> str:
    """Return why a node cannot be replaced now; the limits are those of the controller's own drains."""
    fleet = log.fleet
    if state.phase not in (Phase.IN_SERVICE, Phase.SUSPECT):
        return f"it is not in service but {state.phase.value}"
    if fleet.phases[Phase.READY_SPARE] <= fleet.reserved:
        return "no spare is ready"
    out = max(LIMITS.smallest_cluster_limit, int(LIMITS.cluster_out * len(fleet.nodes)))
    if fleet.drained_by_us >= out:
        return f"{fleet.drained_by_us} nodes are being repaired, at most {out} may be"
    return fleet.breakers.drain_refusal(state, "", now)


async def _require_operator(call: Call, verb: str) -> None:
    operators = await call.dependencies.store.read(operators_tenant_id)
    if call.subject is None or call.subject.tenant_id != operators:
        why = "Only an operator of this cloud can do this for clusters of all tenants."
        raise contract.permission_denied(f"fleet.nodes.{verb}", "", why)


async def _pools(call: Call, cluster_id: str) -> Sequence[Resource]:
    rows = await call.dependencies.store.read(lambda tx: tx.owned(cluster_id))
    found = [row for row in rows if row.kind == NODE_POOL]
    if not found:
        raise contract.not_found("watched cluster", cluster_id)
    return found


async def _find(call: Call, request: BreakFixRequest | ListBreakFixEventsRequest) -> tuple[Resource, PoolLog]:
    for row in await _pools(call, request.cluster_id):
        try:
            wanted = wire.message(row, NodePool).spec.wanted
            log = await call.dependencies.provided.get(NodeLogs).read(row.id, wanted)
        except BrokenLog as error:
            raise _unreadable(str(error)) from error
        if request.node in log.fleet.nodes:
            return row, log
    raise contract.not_found("node", request.node)


async def _newest(call: Call, pool_id: str, limit: int, node: str) -> Sequence[Repair]:
    """Return the newest of a pool or of one node; from their events again where so many are not kept."""
    try:
        log = await call.dependencies.provided.get(NodeLogs).read(pool_id)
    except BrokenLog as error:
        raise _unreadable(str(error)) from error
    found = log.repairs.newest(limit, node)
    if found is None:
        found = all_repairs(await _events(call, pool_id, node)).newest(limit, node) or ()
    return found


async def _events(call: Call, log: str, node: str) -> Sequence[Event]:
    found: list[Event] = []
    after = 0
    while True:
        page = await call.dependencies.store.read_long(  # old events are in archives
            lambda tx, after=after: tx.events(log, subject=node, after=after, limit=PAGE)
        )
        try:
            found += [decode(each.body) for each in page]
        except BadEvent as error:
            raise _unreadable(str(error)) from error
        if len(page) < PAGE:
            return found
        after = page[-1].position


def _unreadable(why: str) -> ApiError:
    text = f"The events of the nodes cannot be read: {why}. Upgrade Neocloud, or restore its database."
    return ApiError(contract.Code.DATA_LOSS, text)


def _message(told: Repair) -> BreakFixEvent:
    found = BreakFixEvent(
        node=told.node,
        type=TYPES[told.kind],
        ticket=told.ticket,
        text=told.text,
        hardware_id=told.hardware_id,
    )
    found.at.FromDatetime(told.moment)
    return found


def _cluster(request: BreakFixRequest | ListBreakFixEventsRequest) -> str:
    return request.cluster_id


METHODS = (
    Method(f"{SERVICE_NAME}/Request", request, "slurm.clusters.update", target=_cluster, is_change=True),
    Method(f"{SERVICE_NAME}/ListEvents", list_events, "slurm.clusters.get", target=_cluster),
    Method(f"{SERVICE_NAME}/RequestAsOperator", request_as_operator, "fleet.nodes.update", is_change=True),
    Method(f"{SERVICE_NAME}/ListEventsAsOperator", list_events_as_operator, "fleet.nodes.get"),
)
