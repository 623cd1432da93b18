"""Descriptions of nodes, beside their health: labels, place and parts, for operators of the cloud alone.

The parts of several clusters meet here only to be shown: what the pods of one tenant say of a part changes no
record of another's.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from neocloud.core import contract
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.part_history import PartRecord
from neocloud.fleet.nodes.parts import Key, Reader
from neocloud.messages.neocloud.fleet.v1 import (
    ListPartsRequest,
    ListPartsResponse,
    Node,
    PartHistory,
    UpdateNodeRequest,
)
from neocloud.services.fleet.api.nodes import (
    PERMISSION,
    SERVICE_NAME,
    Pool,
    find_node,
    fold_of,
    node_of,
    operator_name,
    pools_with_hosts,
)
from neocloud.services.fleet.logs.node_logs import log_event
from neocloud.services.fleet.render import holders_of

MOST_LABELS = 64
PLACE = ("rack", "leaf", "spine", "nvlink_domain")


async def update(call: Call, request: UpdateNodeRequest) -> Write[Node]:
    pool, log, state = await find_node(call, request.id, "update")
    now = call.dependencies.clock.now()
    changes = list(_changes(request, state, now.timestamp(), operator_name(call)))
    if not changes:
        raise contract.bad_state(request.id, f"{request.id} has these labels and this place already.")

    def work(tx: Transaction) -> Node:
        for each in changes:
            tx.append_event(pool.row.id, log_event(each))
        return node_of(call, pool, log, state)

    async def complete(_: Node) -> Node:
        known = await fold_of(call, pool)
        return node_of(call, pool, known, known.fleet.nodes[state.node])

    return Write(work, complete=complete)


def _changes(request: UpdateNodeRequest, state: NodeState, now: float, by: str) -> Iterable[Event]:
    """Yield the events of a request. Raises ApiError."""
    known = {each.key: each.value for each in state.labels}
    if both := sorted(set(request.remove_labels) & set(request.labels)):
        raise contract.bad_field("remove_labels", f"{both[0]} is to be set, too")
    if absent := sorted(set(request.remove_labels) - set(known)):
        raise contract.bad_field("remove_labels", f"the node has no label {absent[0]}")
    if len({*known, *request.labels} - set(request.remove_labels)) > MOST_LABELS:
        raise contract.bad_field("labels", f"a node has at most {MOST_LABELS} labels; take some away")
    for key, value in sorted(request.labels.items()):
        if known.get(key) != value:
            yield e.Labelled(now, state.node, key, value, by)
    for key in sorted(set(request.remove_labels)):
        yield e.Labelled(now, state.node, key, "", by)
    place = {each: str(getattr(state.placed, each, "")) for each in PLACE}
    given = {each: getattr(request.topology, each) for each in PLACE if request.topology.HasField(each)}
    if {**place, **given} != place:
        yield e.Placed(now, state.node, **{**place, **given}, by=by)


async def list_parts(call: Call, request: ListPartsRequest) -> ListPartsResponse:
    seen = [(pool, (await fold_of(call, pool)).fleet) for pool in await pools_with_hosts(call, "", "list")]
    workers = [(pool.message.spec.cluster_id, fleet) for pool, fleet in seen if not pool.is_of_hosts]
    holders = holders_of(workers)  # a worker and the host that it is on have the same GPUs
    now = call.dependencies.clock.now().timestamp()
    found: dict[tuple[Key, str], PartHistory] = {}
    for pool, fleet in seen:
        for key, record in fleet.parts.records.items():
            is_certain = all(each.reader is not Reader.POD for each in record.places)
            name = (key, "" if is_certain else pool.message.spec.cluster_id)
            part = found.setdefault(name, PartHistory(kind=record.kind, serial=record.serial))
            _add(part, pool, record, fleet.parts.lemon(key, now))
    for (key, _), part in found.items():
        own = {each.node_id for each in part.places}
        part.also_in.extend(each for each in holders.get(key, ()) if each not in own)
    wanted = [each for each in found.items() if _is_wanted(each[1], request)]
    scope = f"{SERVICE_NAME}/{request.cluster_id}/{request.node_id}/parts"
    items, token = contract.page(wanted, request, scope=scope, key=lambda each: str(each[0]))
    return ListPartsResponse(items=[part for _, part in items], next_page_token=token)


def _is_wanted(part: PartHistory, request: ListPartsRequest) -> bool:
    prefix = f"{request.cluster_id}/" if request.cluster_id else ""
    return any(
        each.node_id.startswith(prefix) and request.node_id in ("", each.node_id) for each in part.places
    )


def _add(part: PartHistory, pool: Pool, record: PartRecord, lemon: str) -> None:
    """Add what one pool knows of a part."""
    part.model, part.lemon = record.model or part.model, lemon or part.lemon
    part.failures += record.failures
    for place in record.places:
        added = part.places.add(
            node_id=pool.id_of(place.node),
            slot=place.slot,
            firmware=place.firmware,
            reader=place.reader.value,
        )
        added.since.FromDatetime(datetime.fromtimestamp(place.since, UTC))
        if not place.is_open:
            added.until.FromDatetime(datetime.fromtimestamp(place.until, UTC))
    part.places.sort(key=lambda each: each.since.ToNanoseconds())


METHODS = (
    Method(f"{SERVICE_NAME}/Update", update, f"{PERMISSION}.update", is_change=True),
    Method(f"{SERVICE_NAME}/ListParts", list_parts, f"{PERMISSION}.list"),
)
