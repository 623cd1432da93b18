# pyright: strict
"""The last drain of each node by the controller, as a fold over the same events: what was known, what was
decided, which node took over, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neocloud.fleet import events as e
from neocloud.fleet.events import OURS, Event
from neocloud.fleet.lifecycle import NodeState

BOOT_EVIDENCE = "boot:"
TICKET_EVIDENCE = "ticket:"
"""Of replacements that somebody asked for."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Times are None until they have come."""

    evidence: str
    reason: str
    detected_at: float
    decided_at: float
    drained_at: float | None = None
    spare: str = ""
    reserved_at: float | None = None
    attached_at: float | None = None
    ready_at: float | None = None
    repaired_at: float | None = None


class Incidents:
    def __init__(self) -> None:
        self._found: dict[str, Incident] = {}
        self.count = 0
        """Of all drains by the controller, since the first event."""

    @property
    def by_node(self) -> Mapping[str, Incident]:
        return self._found

    def observe(self, event: Event, before: NodeState) -> None:
        """Take in an event that changed its node, which was `before`."""
        match event:
            case e.DrainRequested() if event.owner == OURS:
                self._found[event.node] = _begun(event, before)
                self.count += 1
            case e.Drained():
                self._update(event.node, drained_at=event.at)
            case e.SpareReserved() if event.replaces:
                self._update(event.replaces, spare=event.node, reserved_at=event.at)
            case e.Attached():
                self._update(self._replaced_by(event.node), attached_at=event.at)
            case e.Returned():
                self._update(self._replaced_by(event.node), ready_at=event.at)
            case e.VerificationEnded() if event.passed and before.is_drained_by_us:
                self._update(event.node, repaired_at=event.at)
            case _:
                pass

    def _replaced_by(self, spare: str) -> str:
        waiting = (
            node for node, found in self._found.items() if found.spare == spare and found.ready_at is None
        )
        return next(waiting, "")

    def _update(self, node: str, **changes: float | str) -> None:
        found = self._found.get(node)
        if found is not None:
            self._found[node] = replace(found, **changes)  # type: ignore[arg-type]


def _begun(event: e.DrainRequested, before: NodeState) -> Incident:
    fault = next((fault for fault in before.faults if fault.id == event.evidence), None)
    if fault is not None:
        reason = f"{fault.check}: {fault.sample} (wanted {fault.threshold}, said {fault.source})"
        return Incident(event.evidence, reason, fault.at, event.at)
    if event.evidence.startswith(BOOT_EVIDENCE):
        reason = "it started again without being asked to"
        return Incident(event.evidence, reason, min(before.booted_at, event.at), event.at)
    if event.evidence.startswith(TICKET_EVIDENCE):
        return Incident(event.evidence, "a replacement was asked for", event.at, event.at)
    return Incident(event.evidence, "ordered by the controller", event.at, event.at)
