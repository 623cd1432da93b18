"""From the state of a node to the message that the API shows. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neocloud.fleet.controller import Fleet
from neocloud.fleet.incidents import Incident
from neocloud.fleet.lifecycle import NodeState
from neocloud.fleet.outages import Outage
from neocloud.fleet.parts import Key
from neocloud.messages.neocloud.fleet.v1 import Node

Holders = Mapping[Key, Sequence[str]]


def node_message(
    state: NodeState, incident: Incident | None, now: datetime, outages: Sequence[Outage] = ()
) -> Node:
    """Return the node without what its pool knows of it."""
    node = Node(
        name=state.node,
        phase=state.phase.value,
        boot=state.boot,
        is_spare=state.phase.value == "ready_spare",
        tenant_id=state.tenant,
        job=state.job,
        is_schedulable=state.is_schedulable(now.timestamp()),
    )
    if state.reserved_for is not None:
        node.reserved_for = state.reserved_for or "-"
    _set_time(node.phase_since, state.since)
    for fault in state.faults:
        added = node.faults.add(
            id=fault.id,
            check=fault.check,
            status=fault.status.value,
            sample=fault.sample,
            threshold=fault.threshold,
            source=fault.source,
            version=fault.version,
            boot=fault.boot,
            action=fault.action.value,
        )
        _set_time(added.at, fault.at)
    for hold in state.holds:
        _set_time(node.holds.add(owner=hold.owner, evidence=hold.evidence).since, hold.at)
    if state.certificate is not None:
        node.certificate.boot, node.certificate.suite = state.certificate.boot, state.certificate.suite.value
        _set_time(node.certificate.issued_at, state.certificate.issued_at)
        _set_time(node.certificate.valid_until, state.certificate.valid_until)
    _describe(node, state)
    if incident is not None:
        _set_incident(node, incident)
        times = (int(each.end_by(now.timestamp())) - int(each.begin) for each in outages)
        node.last_incident.credited_seconds = sum(times)
    return node


def _describe(node: Node, state: NodeState) -> None:
    node.labels.update({each.key: each.value for each in state.labels})
    placed = state.placed
    node.topology.leaf = state.leaf
    node.topology.spine = (placed.spine if placed else "") or state.rack  # the switch above the leaf
    if placed is not None:
        node.topology.rack, node.topology.nvlink_domain = placed.rack, placed.nvlink_domain
    if state.inventory is None:
        return
    node.inventory.reader, node.inventory.simulated = state.inventory.reader.value, state.inventory.simulated
    _set_time(node.inventory.at, state.inventory.at)
    for part in state.inventory.parts:
        node.inventory.parts.add(**part._asdict())


def holders_of(fleets: Iterable[tuple[str, Fleet]]) -> Holders:
    """Return the parts that several nodes say they have. `fleets`: with the ids of their clusters."""
    found: dict[Key, list[str]] = {}
    for cluster_id, fleet in fleets:
        for key, record in fleet.parts.records.items():
            found.setdefault(key, []).extend(f"{cluster_id}/{each.node}" for each in record.open_places)
    return {key: nodes for key, nodes in found.items() if len(nodes) > 1}


def name_others(node: Node, holders: Holders) -> None:
    """Name the other nodes that say they have a part of this one."""
    for part in node.inventory.parts if node.HasField("inventory") else ():
        part.also_in.extend(each for each in holders.get((part.kind, part.serial), ()) if each != node.id)


def _set_incident(node: Node, incident: Incident) -> None:
    found = node.last_incident
    found.evidence, found.reason, found.spare = incident.evidence, incident.reason, incident.spare
    for name in ("detected", "decided", "drained", "reserved", "attached", "ready", "repaired"):
        at = getattr(incident, f"{name}_at")
        if at is not None:
            _set_time(getattr(found, f"{name}_at"), at)


def _set_time(field: Any, at: float) -> None:
    field.FromDatetime(datetime.fromtimestamp(at, UTC))
