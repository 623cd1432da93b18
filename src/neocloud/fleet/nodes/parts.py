"""Parts of nodes: what a node says it has, and which of them a failing check names. Pure."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

MOST_PARTS = 256
"""Parts of one node, in one event."""
LONGEST = 128
"""Longest text of a part."""
MOST_BLAMED = 2
"""A check that names more parts of a node is about what they share, and about none of them."""
Key = tuple[str, str]
"""Kind and serial number: what a part is known by, wherever it is."""


class Reader(StrEnum):
    """The readers of a node's parts, the least trusted first."""

    POD = "pod"
    """The agent in a worker's pod: a claim, since root of a tenant may control what it says."""
    HOST = "host"
    """The agent of the host, which no tenant reaches."""
    CLOUD = "cloud"
    """The control plane, which knows that a node has gone."""


class HostPart(NamedTuple):
    """A part of a host that can be replaced. Values that it does not report are ""."""

    kind: str
    slot: str
    """Where it sits: a PCI address, or the name of a device."""
    model: str = ""
    serial: str = ""
    firmware: str = ""

    @property
    def key(self) -> Key | None:
        """Return the key of the part; None for a part that does not tell its serial number."""
        return (self.kind, self.serial) if self.serial else None


def merged(old: Sequence[HostPart], new: Sequence[HostPart]) -> tuple[HostPart, ...]:
    """Return the parts after a reading in which some did not answer: none of them counts as removed."""
    slots = {(each.kind, each.slot) for each in new}
    keys = {each.key for each in new if each.key}
    kept = [each for each in old if (each.kind, each.slot) not in slots and each.key not in keys]
    return tuple(sorted([*kept, *new])[:MOST_PARTS])


def named(devices: str, parts: Sequence[HostPart]) -> list[HostPart]:
    """Return the parts with serial numbers that a check blames, by the devices that it names.

    Empty where it names none, or more than a fault of single parts explains.
    """
    found = [part for part in parts if part.serial and any(_is_at(part, each) for each in _names(devices))]
    return found if len(found) <= MOST_BLAMED else []


def _names(devices: str) -> Iterator[str]:
    for each in devices.split(","):
        if name := each.strip().lower().removeprefix("pci:"):
            yield name


def _is_at(part: HostPart, device: str) -> bool:
    """A device is a slot, a port ("mlx5_0/1"), a PCI address without its function, or a serial number."""
    slot = part.slot.lower()
    return device in (slot, part.serial.lower()) or device.split("/")[0] == slot or slot == f"{device}.0"


def serial_of_host(parts: Sequence[HostPart]) -> str:
    """Return the serial number of the machine itself, or ""."""
    return next((each.serial for each in parts if each.kind == "system"), "")
