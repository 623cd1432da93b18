"""Repairs as a fold over the events of nodes: tickets, maintenance, nodes that leave.

Each has the serial number of the hardware that it is about, by what was known when it happened.

The newest of the fleet and of each node are kept. Older ones are computed from the events again.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.descriptions import inventory_after
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import evidence_of
from neocloud.fleet.nodes.parts import named, serial_of_host
from neocloud.fleet.policy.actions import Action

MOST = 500
"""Repairs of a fleet that are kept: as many as can be asked for at once."""
MOST_OF_A_NODE = 100
MOST_DEVICES = 50
"""Failing verdicts of a node whose devices are kept, beside the current ones."""


class RepairKind(StrEnum):
    MAINTENANCE = "maintenance"
    LEAVES = "leaves"
    OPENED = "opened"
    UPDATED = "updated"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Repair:
    at: float
    node: str
    kind: RepairKind
    ticket: str
    """The subject: a ticket, or a window of maintenance."""
    text: str
    hardware_id: str = ""

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


class Repairs:
    def __init__(
        self, most: int = MOST, most_of_node: int = MOST_OF_A_NODE, most_devices: int = MOST_DEVICES
    ):
        self._limits = (most, most_of_node, most_devices)
        self._newest: list[Repair] = []
        """In the order of their times, and of the log where these are equal."""
        self._by_node: dict[str, list[Repair]] = {}
        self._cut: dict[str, None] = {}
        """Nodes of which older ones are not kept."""
        self._tickets: dict[str, str] = {}
        """The ticket that is open for each node."""
        self._serials: dict[tuple[str, str], str] = {}
        """The serial number that each node and ticket is about, while it lasts: a ticket keeps the number
        that it began with, also when the part is replaced meanwhile.
        """
        self._devices: dict[str, dict[str, str]] = {}
        """Devices that the newest failing verdicts of each node name."""

    def newest(self, limit: int, node: str = "") -> Sequence[Repair] | None:
        """Return the newest, oldest first, at most `limit`; None where so many are not kept."""
        if node:
            found, is_cut, kept = self._by_node.get(node, []), node in self._cut, self._limits[1]
        else:
            found, is_cut, kept = self._newest, True, self._limits[0]
        return None if is_cut and limit > kept else found[-limit:]

    def observe(self, event: Event, before: NodeState) -> None:
        """Take in an event of a node, which was `before`."""
        if isinstance(event, e.Verdict):
            if event.status is Status.FAIL and event.devices:
                self._add_devices(event, before)
            return
        ticket = self._tickets.get(event.node, "")
        for each in self._told(event, ticket):
            made = replace(each, hardware_id=self._serial(each, before))
            self._keep(made)
            if made.kind is RepairKind.CLOSED:
                self._forget(event.node, ticket)
                del self._tickets[event.node]
            elif isinstance(event, e.DrainReleased):
                self._forget(event.node, made.ticket)

    def _told(self, event: Event, ticket: str) -> Iterator[Repair]:
        at, node = event.at, event.node
        match event:
            case e.DrainRequested() if event.owner == OURS and not ticket:
                self._tickets[node] = event.evidence
                yield Repair(at, node, RepairKind.OPENED, event.evidence, "the node is drained")
            case e.DrainRequested() if window := evidence_of(event.owner):
                yield Repair(at, node, RepairKind.MAINTENANCE, window, event.evidence)
            case e.DrainReleased() if window := evidence_of(event.owner):
                yield Repair(at, node, RepairKind.MAINTENANCE, window, "it is over")
            case e.Moved() if event.to in (Phase.RETIRED, Phase.RMA_OUT):
                yield Repair(at, node, RepairKind.LEAVES, ticket, _moved(event))
            case e.Moved() if event.to is Phase.TRIAGE and not ticket:
                self._tickets[node] = f"triage:{at:.0f}"
                yield Repair(at, node, RepairKind.OPENED, self._tickets[node], "handed over to the operators")
            case e.Moved() if ticket:
                yield Repair(at, node, RepairKind.UPDATED, ticket, _moved(event))
            case e.StepStarted() if ticket and event.action is not Action.NONE:
                yield Repair(at, node, RepairKind.UPDATED, ticket, f"step: {event.action.value}")
            case e.VerificationEnded() if ticket:
                kind, text = (
                    (RepairKind.CLOSED, "verified")
                    if event.passed
                    else (RepairKind.UPDATED, "verification failed")
                )
                yield Repair(at, node, kind, ticket, text)
            case _:
                pass

    def _keep(self, made: Repair) -> None:
        most, most_of_node, _ = self._limits
        of_node = self._by_node.setdefault(made.node, [])
        for found in (self._newest, of_node):
            if found and found[-1].moment > made.moment:
                insort(found, made, key=_moment)
            else:
                found.append(made)
        del self._newest[: max(0, len(self._newest) - most)]
        if len(of_node) > most_of_node:
            del of_node[0]
            self._cut[made.node] = None

    def _add_devices(self, event: e.Verdict, before: NodeState) -> None:
        of_node = self._devices.setdefault(event.node, {})
        of_node.pop(event.id, None)
        of_node[event.id] = event.devices
        if len(of_node) > self._limits[2]:
            needed = {self._tickets.get(event.node, ""), *(fault.id for fault in before.faults)}
            oldest = next((each for each in of_node if each not in needed), None)
            if oldest is not None:
                del of_node[oldest]

    def _serial(self, made: Repair, before: NodeState) -> str:
        """Return the serial number of the one part that the evidence of a ticket names, else the machine's;
        "" if neither is known."""
        key = (made.node, made.ticket)
        if known := self._serials.get(key):
            return known
        parts = before.inventory.parts if before.inventory else ()
        blamed = named(self._devices.get(made.node, {}).get(made.ticket, ""), parts)
        serial = blamed[0].serial if len(blamed) == 1 else serial_of_host(parts)
        if made.ticket and serial:
            self._serials[key] = serial
        return serial

    def _forget(self, node: str, ticket: str) -> None:
        """Drop the serial number of an ended repair: one that begins again under the same name, such as the
        drain of a host, may be about another part.
        """
        self._serials.pop((node, ticket), None)


def _moved(event: e.Moved) -> str:
    return f"moved to {event.to.value}" + (f": {event.why}" if event.why else "")


def _moment(made: Repair) -> datetime:
    return made.moment


def all_repairs(events: Iterable[Event]) -> Repairs:
    """Return the fold over these events that keeps all of them."""
    everything = 1 << 62
    found, states = Repairs(everything, everything, everything), dict[str, NodeState]()
    for event in events:
        before = states.get(event.node) or NodeState(event.node)
        found.observe(event, before)
        if isinstance(event, e.InventoryChanged):
            inventory = inventory_after(before.inventory, event)
            states[event.node] = replace(before, inventory=inventory)
    return found
