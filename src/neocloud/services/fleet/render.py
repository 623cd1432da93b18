"""From the state of a node to the message that the API shows. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neocloud.fleet.actions import Action
from neocloud.fleet.events import OURS
from neocloud.fleet.incidents import BOOT_EVIDENCE, Incident
from neocloud.fleet.lifecycle import NodeState
from neocloud.fleet.outages import MAINTENANCE_PREFIX, Outage
from neocloud.messages.neocloud.fleet.v1 import DrainedHost, Node
from neocloud.services.fleet.types import CLUSTER_OWNER, plain


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
    if incident is not None:
        _set_incident(node, incident)
        times = (int(each.end_by(now.timestamp())) - int(each.begin) for each in outages)
        node.last_incident.credited_seconds = sum(times)
    return node


def _set_incident(node: Node, incident: Incident) -> None:
    found = node.last_incident
    found.evidence, found.reason, found.spare = incident.evidence, incident.reason, incident.spare
    for name in ("detected", "decided", "drained", "reserved", "attached", "ready", "repaired"):
        at = getattr(incident, f"{name}_at")
        if at is not None:
            _set_time(getattr(found, f"{name}_at"), at)


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
    if not holds:
        return None
    words = [f"a fault: {each.check}" if each.owner == OURS else each.evidence for each in holds]
    is_window = all(each.owner.startswith(MAINTENANCE_PREFIX) for each in holds)
    found = DrainedHost(host=state.node, reason=plain("; ".join(words)), is_window=is_window)
    _set_time(found.since, holds[0].at)
    return found


def host_advice(state: NodeState, machines: Mapping[bool, int], open_hosts: int) -> str:
    """Return what goes on, on a drained host, and what an operator has to do. `machines`: how many run, by
    whether their recovery policy lets them start elsewhere."""
    if drained_host(state) is None:
        return ""
    parts = ["nothing new is started on it, and what runs there goes on"]
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


def _set_time(field: Any, at: float) -> None:
    field.FromDatetime(datetime.fromtimestamp(at, UTC))
