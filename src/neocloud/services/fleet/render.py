"""From the state of a node to the message that the API shows. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neocloud.fleet.control.controller import Fleet
from neocloud.fleet.nodes import events
from neocloud.fleet.nodes.events import OURS, Phase
from neocloud.fleet.nodes.incidents import BOOT_EVIDENCE, Incident
from neocloud.fleet.nodes.node_state import Certificate, NodeState
from neocloud.fleet.nodes.outages import MAINTENANCE_PREFIX, Outage
from neocloud.fleet.nodes.parts import Key
from neocloud.fleet.policy.actions import Action
from neocloud.messages.neocloud.fleet.v1 import DrainedHost, Node, Verdict
from neocloud.services.fleet.types import CLUSTER_OWNER, plain

WITH_PEOPLE = frozenset({Phase.DEBUG, Phase.RMA_OUT, Phase.RMA_RETURNED, Phase.RETIRED})
"""Phases in which a host starts nothing new, drained by the controller or by an operator."""
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
    set_time(node.phase_since, state.since)
    node.faults.extend(verdict_message(fault) for fault in state.faults)
    for hold in state.holds:
        set_time(node.holds.add(owner=hold.owner, evidence=hold.evidence).since, hold.at)
    if state.certificate is not None:
        set_certificate(node.certificate, state.certificate)
    _describe(node, state)
    if incident is not None:
        set_incident(node.last_incident, incident, outages, now)
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
    set_time(node.inventory.at, state.inventory.at)
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


def verdict_message(verdict: events.Verdict) -> Verdict:
    found = Verdict(
        id=verdict.id,
        check=verdict.check,
        status=verdict.status.value,
        sample=verdict.sample,
        threshold=verdict.threshold,
        source=verdict.source,
        version=verdict.version,
        boot=verdict.boot,
        action=verdict.action.value,
    )
    set_time(found.at, verdict.at)
    return found


def set_certificate(found: Any, certificate: Certificate) -> None:
    found.boot, found.suite = certificate.boot, certificate.suite.value
    set_time(found.issued_at, certificate.issued_at)
    set_time(found.valid_until, certificate.valid_until)


def set_incident(found: Any, incident: Incident, outages: Sequence[Outage], now: datetime) -> None:
    """Set the fields of an `Incident`; `outages` are those of the node for its evidence."""
    found.evidence, found.reason, found.spare = incident.evidence, incident.reason, incident.spare
    for name in ("detected", "decided", "drained", "reserved", "attached", "ready", "repaired"):
        at = getattr(incident, f"{name}_at")
        if at is not None:
            set_time(getattr(found, f"{name}_at"), at)
    times = (int(each.end_by(now.timestamp())) - int(each.begin) for each in outages)
    found.credited_seconds = sum(times)


def drained_host(state: NodeState) -> DrainedHost | None:
    """Return what is said of a host on which nothing new is started; None of one that takes new work.

    Samples of faults are for operators: tenants read which check failed. A host that has only started again
    is verified beside its work.
    """
    holds = [
        each
        for each in state.holds
        if each.owner != CLUSTER_OWNER and not each.evidence.startswith(BOOT_EVIDENCE)
    ]
    if not holds and state.phase in WITH_PEOPLE:
        found = DrainedHost(host=state.node, reason=f"it is in {state.phase.value}")
        set_time(found.since, state.since)
        return found
    if not holds:
        return None
    words = [f"a fault: {each.check}" if each.owner == OURS else each.evidence for each in holds]
    is_window = all(each.owner.startswith(MAINTENANCE_PREFIX) for each in holds)
    found = DrainedHost(host=state.node, reason=plain("; ".join(words)), is_window=is_window)
    set_time(found.since, holds[0].at)
    return found


def host_advice(state: NodeState, machines: Mapping[bool, int], open_hosts: int) -> str:
    """Return what continues on a drained host, and what an operator has to do. `machines`: how many run, by
    whether their recovery policy lets them start elsewhere."""
    if drained_host(state) is None:
        return ""
    parts = ["nothing new is started on it, and running workloads continue"]
    if movable := machines.get(True, 0):
        where = "another host takes work" if open_hosts else "there is no other host that takes new work"
        policy = "which may be stopped and started elsewhere by their recovery policy"
        parts.append(f"{movable} of {sum(machines.values())} machines, {policy}, stay: {where}")
    if state.is_drained_by_us:
        steps = [each.action.value for each in state.faults if each.action.rung > Action.NONE.rung]
        what = ", ".join(f"{each.check}: {each.sample}" for each in state.faults) or "no fault is left"
        step = max(steps, key=lambda each: Action(each).rung, default=Action.TRIAGE.value)
        parts.append(f"for an operator: {step} ({what}); then `neo fleet release {state.node}`")
    return ". ".join(parts)


def set_time(field: Any, at: float) -> None:
    field.FromDatetime(datetime.fromtimestamp(at, UTC))
