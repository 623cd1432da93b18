"""The drains of nodes by the controller, as a fold over the same events: what was known, what was decided,
which node took over, what was tried, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Phase
from neocloud.fleet.nodes.node_state import NodeState

BOOT_EVIDENCE = "boot:"
TICKET_EVIDENCE = "ticket:"
"""Evidence of requested replacements."""
MOST_PAST = 500
"""Incidents that are kept of those that are not the last of their node."""
MOST_STEPS = 50


@dataclass(frozen=True, slots=True)
class IncidentStep:
    """A repair, a verification or a move; the outcome is "" while it runs."""

    at: float
    what: str
    outcome: str = ""
    ended_at: float | None = None


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
    number: int = 0
    """Counts from 1 among those of the log."""
    node: str = ""
    steps: tuple[IncidentStep, ...] = ()
    retired_at: float | None = None
    returned_at: float | None = None
    """When the node itself was in service again."""
    check: str = ""
    """The check that failed; "" where none did."""

    @property
    def ended_at(self) -> float | None:
        return self.repaired_at if self.retired_at is None else self.retired_at


class Incidents:
    def __init__(self) -> None:
        self._found: dict[str, Incident] = {}
        self._past: list[Incident] = []
        self.count = 0
        """Number of all drains by the controller, since the first event."""

    @property
    def by_node(self) -> Mapping[str, Incident]:
        """The last one of each node."""
        return self._found

    @property
    def all(self) -> Sequence[Incident]:
        """Return those that are known, the oldest first."""
        return sorted((*self._past, *self._found.values()), key=lambda each: each.number)

    def observe(self, event: Event, before: NodeState) -> None:
        """Take in an event that changed its node, which was `before`."""
        match event:
            case e.DrainRequested() if event.owner == OURS:
                if event.node in self._found:
                    self._past = [*self._past, self._found[event.node]][-MOST_PAST:]
                self.count += 1
                self._found[event.node] = replace(_begun(event, before), number=self.count, node=event.node)
            case e.Drained() if before.is_drained_by_us:  # a later drain of others is none of its
                self._update(event.node, drained_at=event.at)
            case e.SpareReserved() if self._lasts(event.replaces):
                self._update(event.replaces, spare=event.node, reserved_at=event.at)
            case e.Attached():
                self._update(self._replaced_by(event.node), attached_at=event.at)
            case e.Returned():
                self._update(self._replaced_by(event.node), ready_at=event.at)
                known = self._found.get(event.node)
                if known is not None and known.repaired_at is not None and known.returned_at is None:
                    self._update(event.node, returned_at=event.at)
            case _ if before.is_drained_by_us:
                self._repaired(event)
            case _:
                pass

    def _repaired(self, event: Event) -> None:
        match event:
            case e.StepStarted():
                self._step(IncidentStep(event.at, event.action.value), event.node)
            case e.VerificationStarted():
                self._step(IncidentStep(event.at, f"{event.suite.value} verification"), event.node)
            case e.StepEnded():
                self._end_step(event, "done" if event.succeeded else "failed")
            case e.VerificationEnded():
                self._end_step(event, "passed" if event.passed else "failed")
                if event.passed:
                    self._update(event.node, repaired_at=event.at)
            case e.Moved():
                self._step(IncidentStep(event.at, f"moved to {event.to.value}", "done", event.at), event.node)
                if event.to is Phase.RETIRED:
                    self._update(event.node, retired_at=event.at)
            case _:
                pass

    def _step(self, step: IncidentStep, node: str) -> None:
        found = self._found.get(node)
        if found is not None:
            self._found[node] = replace(found, steps=(*found.steps, step)[-MOST_STEPS:])

    def _end_step(self, event: Event, outcome: str) -> None:
        found = self._found.get(event.node)
        if found is not None and found.steps:
            *earlier, last = found.steps
            ended = replace(last, outcome=outcome, ended_at=event.at)
            self._found[event.node] = replace(found, steps=(*earlier, ended))

    def _lasts(self, node: str) -> bool:
        """Return whether the node's last incident is open: a spare may replace a node that others drained."""
        found = self._found.get(node)
        return found is not None and found.ended_at is None

    def _replaced_by(self, spare: str) -> str:
        waiting = (
            node for node, found in self._found.items() if found.spare == spare and found.ready_at is None
        )
        return next(waiting, "")

    def _update(self, node: str, **changes: Any) -> None:
        found = self._found.get(node)
        if found is not None:
            self._found[node] = replace(found, **changes)


def _begun(event: e.DrainRequested, before: NodeState) -> Incident:
    fault = next((fault for fault in before.faults if fault.id == event.evidence), None)
    if fault is not None:
        wanted = e.threshold_in_words(fault.threshold)
        reason = f"{fault.check}: {fault.sample} ({wanted}, said {fault.source})"
        return Incident(event.evidence, reason, fault.at, event.at, check=fault.check)
    if event.evidence.startswith(BOOT_EVIDENCE):
        reason = "it started again without being asked to" + (f": {before.ended}" if before.ended else "")
        return Incident(event.evidence, reason, min(before.booted_at, event.at), event.at)
    if event.evidence.startswith(TICKET_EVIDENCE):
        return Incident(event.evidence, "a replacement was asked for", event.at, event.at)
    return Incident(event.evidence, "ordered by the controller", event.at, event.at)
