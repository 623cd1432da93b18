"""Serial numbers of what the events of repairs are about, by what was known when each happened. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from neocloud.fleet import events as e
from neocloud.fleet.descriptions import inventory_after
from neocloud.fleet.events import Event, Status
from neocloud.fleet.parts import Part, named, serial_of_host


class HardwareIds:
    """A fold over the events of nodes."""

    def __init__(self) -> None:
        self._inventories: dict[str, e.InventoryChanged | None] = {}
        self._devices: dict[tuple[str, str], str] = {}
        """What each failing verdict names."""
        self._of_tickets: dict[tuple[str, str], str] = {}

    def watching(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, each once it is taken in."""
        for event in events:
            if isinstance(event, e.InventoryChanged):
                known = self._inventories.get(event.node)
                self._inventories[event.node] = inventory_after(known, event)
            elif isinstance(event, e.Verdict) and event.status is Status.FAIL and event.devices:
                self._devices[event.node, event.id] = event.devices
            yield event

    def id_of(self, node: str, ticket: str) -> str:
        """Return the serial number of the one part that the evidence of a ticket names, else the machine's.

        A ticket keeps the number that it began with, also when the part is replaced meanwhile. "" if neither
        is known."""
        known = self._inventories.get(node)
        serial = self._serial(known.parts if known else (), self._devices.get((node, ticket), ""))
        return self._of_tickets.setdefault((node, ticket), serial) if ticket and serial else serial

    def _serial(self, parts: Sequence[Part], devices: str) -> str:
        blamed = named(devices, parts)
        return blamed[0].serial if len(blamed) == 1 else serial_of_host(parts)
