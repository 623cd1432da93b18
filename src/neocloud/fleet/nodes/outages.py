"""When nodes do not serve because of the platform, as a fold over the events of nodes: what a tenant is not
charged for, and why.

A tenant has root on its nodes, so nothing that it can write or break makes a node both usable and free: a
drain of its own is charged, and so is a node out of service while a job runs on it, after a short time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from neocloud.fleet.nodes.events import OURS, Event, Phase
from neocloud.fleet.nodes.incidents import TICKET_EVIDENCE, Incident, Incidents
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.limits import DAY

OPERATOR_PREFIX = "operator:"
MAINTENANCE_PREFIX = "window:"
"""Owners of drains that the platform records. Every other owner but the controller is of the tenant, or read
from the reason of a drain in Slurm, which the tenant can write."""
HOST_PREFIX = "host:"
"""Owners of drains of workers whose host is drained, which the platform records."""
HOST_EVIDENCE = "host"
"""Evidence of an outage because of the host. Tenants do not see its name."""
TENANT_PREFIX = "tenant:"
"""Owners of drains that somebody of a tenant asked the platform for."""
GRACE_SECONDS = 600.0
"""How long a job may run on a node after its fault was detected before the node is charged again."""

KEPT_SECONDS = 64 * DAY
"""How long ended outages are kept: bills of this month and the last need them, of 62 days at most."""
LEAST = 100
"""Fewer ended ones are not looked through for old ones."""


class Cause(StrEnum):
    SPARE = "spare"
    FAULT = "fault"
    OPERATOR = "operator"
    MAINTENANCE = "maintenance"
    VERIFICATION = "verification"
    """It has not passed its checks since its last start or drain, or they run."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node did not serve from `begin` to `end`, or still does not."""

    node: str
    cause: Cause
    evidence: str
    """The failing verdict or the start that began it, the window, or the operator's text."""
    reason: str
    begin: float
    end: float | None = None
    limit: float | None = None
    """When it ends at the latest: a job that runs on a faulty node uses it."""

    def end_by(self, now: float) -> float:
        """Return when it ended, or how far it has come."""
        found = now if self.end is None else self.end
        return max(self.begin, found if self.limit is None else min(found, self.limit))


class Outages:
    def __init__(self, kept_seconds: float = KEPT_SECONDS) -> None:
        """`kept_seconds`: infinite to keep all. Those of incidents are kept as long as the incidents."""
        self._kept_seconds = kept_seconds
        self.complete_since = -math.inf
        """Time since when no outage is missing."""
        self._look_at = LEAST
        """How many ended ones there are when old ones are looked for again."""
        self._newest = -math.inf
        self._ended: list[Outage] = []
        self._open: dict[str, Outage] = {}
        self._served_since: dict[str, float] = {}
        """End of the last outage of each node: outages of a node never overlap."""

    @property
    def all(self) -> Sequence[Outage]:
        return [*self._ended, *self._open.values()]

    def of(self, node: str, evidence: str) -> Sequence[Outage]:
        """Return the outages of a node for one reason."""
        return [each for each in self.all if each.node == node and each.evidence == evidence]

    def observe(self, event: Event, after: NodeState, incidents: Incidents) -> None:
        """Take in an event that changed its node, which is `after` now."""
        self._newest = max(self._newest, event.at)
        found, known = _cause(after), self._open.get(after.node)
        if known is not None and found == (known.cause, known.evidence):
            is_draining = after.phase is Phase.DRAINING
            if known.limit is None or is_draining or event.at <= known.limit:
                self._open[after.node] = known if is_draining else replace(known, limit=None)
                return
        if known is not None:
            del self._open[after.node]
            ended = replace(known, end=max(known.begin, known.end_by(event.at)))
            self._ended.append(ended)
            self._served_since[after.node] = ended.end_by(event.at)
            if len(self._ended) >= self._look_at:
                self._forget_old(incidents)
        if found is not None:
            self._open[after.node] = self._begun(event, after, *found, incidents.by_node.get(after.node))

    def _forget_old(self, incidents: Incidents) -> None:
        """Leave old ones to the events, which are never thrown away."""
        oldest = self._newest - self._kept_seconds
        needed = {(each.node, each.evidence) for each in incidents.all}
        old = {
            place
            for place, each in enumerate(self._ended)
            if each.end_by(self._newest) < oldest and (each.node, each.evidence) not in needed
        }
        ends = (self._ended[place].end_by(self._newest) for place in old)
        self.complete_since = max((self.complete_since, *ends))
        self._ended = [each for place, each in enumerate(self._ended) if place not in old]
        self._look_at = max(LEAST, 2 * len(self._ended))

    def _begun(
        self, event: Event, state: NodeState, cause: Cause, evidence: str, incident: Incident | None
    ) -> Outage:
        begin, reason, limit = event.at, _REASONS[cause], None
        if cause is Cause.FAULT and incident is not None and incident.evidence == evidence:
            reason = incident.reason
            begin = _detected(event.at, state, incident)
        elif cause is Cause.OPERATOR:
            reason = evidence
        elif cause is Cause.MAINTENANCE:
            reason = next(hold.evidence for hold in state.holds if evidence_of(hold.owner) == evidence)
        if state.phase is Phase.DRAINING:
            limit = state.since + GRACE_SECONDS
        begin = max(begin, self._served_since.get(state.node, begin))
        return Outage(state.node, cause, evidence, reason, begin, limit=limit)


_REASONS: Mapping[Cause, str] = {
    Cause.SPARE: "it waits as a spare",
    Cause.FAULT: "drained by the controller",
    Cause.OPERATOR: "",
    Cause.MAINTENANCE: "",
    Cause.VERIFICATION: "it has not passed its checks since its last start or drain",
}


def is_of_platform(owner: str) -> bool:
    return owner == OURS or owner.startswith((OPERATOR_PREFIX, MAINTENANCE_PREFIX, HOST_PREFIX))


def evidence_of(owner: str) -> str:
    """Return the evidence of a drain for maintenance, or because of the host; "" for any other."""
    if owner.startswith(HOST_PREFIX):
        return HOST_EVIDENCE
    return owner.removeprefix(MAINTENANCE_PREFIX) if owner.startswith(MAINTENANCE_PREFIX) else ""


def _detected(at: float, state: NodeState, incident: Incident) -> float:
    """Return from when on a node that is drained now was of little use to a job, or none."""
    if state.phase is not Phase.DRAINING:
        return at
    return min(at, max(incident.detected_at, at - GRACE_SECONDS))


def _cause(state: NodeState) -> tuple[Cause, str] | None:
    """Return why the node does not serve and what shows it; None while it is charged."""
    if state.phase in (Phase.IN_SERVICE, Phase.SUSPECT) or state.is_occupied:
        return None
    if any(not is_of_platform(hold.owner) for hold in state.holds):
        return None
    if state.phase is Phase.READY_SPARE:
        return None if state.reserved_for is not None else (Cause.SPARE, "")
    ours = next((hold for hold in state.holds if hold.owner == OURS), None)
    if ours is not None:
        is_asked_for = state.phase is Phase.DRAINING and ours.evidence.startswith(TICKET_EVIDENCE)
        return None if is_asked_for else (Cause.FAULT, ours.evidence)
    if state.phase is Phase.DRAINING:
        return None  # its job runs on until it ends
    for hold in state.holds:
        if evidence := evidence_of(hold.owner):
            return Cause.MAINTENANCE, evidence
    if state.holds:
        return Cause.OPERATOR, state.holds[0].evidence
    return Cause.VERIFICATION, ""
