"""The history of each part by its serial number: its locations and failures, as a fold over the events of a
fleet.

A part that moves, or whose node gets another name, keeps its history. Where two nodes say that they have it,
both are kept, and only one of them is trusted for it: the better reader before a pod, then the first holder.
So a node that claims the part of another one neither counts failures for it nor takes its history.
"""

import math
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Status
from neocloud.fleet.nodes.lemons import LemonRecord, excess_of_failures
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.parts import HostPart, Key, Reader, named
from neocloud.fleet.policy.limits import Limits

MOST_PLACES = 16
"""Locations of one part; the newest are kept."""
MOST_GONE = 512
"""Parts in no node that never failed; those that failed are kept."""
MOST_FAILED = 4096
_RANK = {reader: rank for rank, reader in enumerate(Reader)}


@dataclass(frozen=True, slots=True)
class PartLocation:
    """A location of a part, with its firmware and the reader that reported it."""

    node: str
    slot: str
    firmware: str
    reader: Reader
    since: float
    until: float = math.inf

    @property
    def is_open(self) -> bool:
        return math.isinf(self.until)


@dataclass(frozen=True, slots=True)
class PartRecord:
    kind: str
    model: str
    serial: str
    places: tuple[PartLocation, ...] = ()
    """In the order in which they began."""
    failures: int = 0
    """Drains for a failing check that named the part, without those that turned out to be wrong."""
    seconds: float = 0.0
    """In nodes, before `fitted_since`."""
    fitted_since: float = math.inf
    """Since when it has been in some node; infinite while it is in none."""

    @property
    def open_places(self) -> tuple[PartLocation, ...]:
        return tuple(each for each in self.places if each.is_open)

    @property
    def holder(self) -> PartLocation | None:
        """Return the location whose reader is trusted for the part; None without one."""
        return min(self.open_places, key=lambda each: (-_RANK[each.reader], each.since), default=None)

    def watched(self, now: float) -> LemonRecord:
        """Return its failures and the time in nodes, as of something that was watched without a break."""
        return LemonRecord(now - self.seconds - max(0.0, now - self.fitted_since), self.failures)


class PartHistory:
    """The parts of a fleet of nodes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.records: dict[Key, PartRecord] = {}
        self.blamed: dict[str, tuple[str, tuple[Key, ...]]] = {}
        """The last verdict for which each node was drained, and the parts that it named."""

    def copy(self) -> "PartHistory":
        other = copy(self)
        other.records, other.blamed = self.records.copy(), self.blamed.copy()
        return other

    def observe(self, event: Event, before: NodeState, after: NodeState) -> None:
        """Take in an event that changed its node, or a judgement."""
        match event:
            case e.InventoryChanged():
                self._compare(event, parts_of(before), parts_of(after))
            case e.DrainRequested() if event.owner == OURS and event.check and not before.is_drained_by_us:
                self._blame(event, before)
            case e.Judged() if not event.is_confirmed:
                verdict, keys = self.blamed.get(event.node, ("", ()))
                if verdict == event.verdict:
                    del self.blamed[event.node]
                    self._count(keys, -1)
            case _:
                pass

    def _compare(self, event: e.InventoryChanged, old: Iterable[HostPart], new: Iterable[HostPart]) -> None:
        was = {each.key: each for each in old if each.key}
        now = {each.key: each for each in new if each.key}
        for key, part in was.items():
            if now.get(key) != part:
                self._close(key, event)
        for key, part in now.items():
            if was.get(key) != part:
                self._open(key, part, event)
        self._drop_oldest()

    def _close(self, key: Key, event: e.InventoryChanged) -> None:
        record = self.records.get(key)
        if record is None:
            return
        places = tuple(
            replace(each, until=event.at) if each.is_open and each.node == event.node else each
            for each in record.places
        )
        record = replace(record, places=places)
        if record.open_places:
            self.records[key] = record
            return
        seconds = record.seconds + max(0.0, event.at - record.fitted_since)
        self.records[key] = replace(record, seconds=seconds, fitted_since=math.inf)

    def _open(self, key: Key, part: HostPart, event: e.InventoryChanged) -> None:
        known = self.records.get(key) or PartRecord(part.kind, part.model, part.serial)
        place = PartLocation(event.node, part.slot, part.firmware, event.reader, event.at)
        ended = [each for each in known.places if not each.is_open]
        kept = ended[max(0, len(ended) + 1 - MOST_PLACES) :]
        self.records[key] = replace(
            known,
            places=tuple(sorted((*kept, *known.open_places, place), key=lambda each: each.since)),
            fitted_since=min(known.fitted_since, event.at),
        )

    def _drop_oldest(self) -> None:
        """A node that names other parts each time fills no memory, and pushes out none that failed."""
        gone = [(key, each) for key, each in self.records.items() if not each.open_places]
        for most, group in (
            (MOST_GONE, [key for key, each in gone if not each.failures]),
            (MOST_FAILED, [key for key, each in gone if each.failures]),
        ):
            by_age = sorted(group, key=lambda key: self.records[key].places[-1].until)
            for key in by_age[: max(0, len(by_age) - most)]:
                del self.records[key]

    def _blame(self, event: e.DrainRequested, before: NodeState) -> None:
        fault = next((each for each in before.faults if each.id == event.evidence), None)
        if fault is None or fault.status is not Status.FAIL:
            return
        keys = tuple(
            key
            for part in named(fault.devices, parts_of(before))
            if (key := part.key) and self.is_held_by(key, event.node)
        )
        if keys:
            self.blamed[event.node] = (fault.id, keys)
            self._count(keys, 1)

    def _count(self, keys: Iterable[Key], change: int) -> None:
        for key in keys:
            if record := self.records.get(key):
                self.records[key] = replace(record, failures=max(0, record.failures + change))

    def is_held_by(self, key: Key, node: str) -> bool:
        """Return whether this node is trusted for the part."""
        holder = self.records[key].holder if key in self.records else None
        return holder is not None and holder.node == node

    def shared(self) -> Iterator[PartRecord]:
        """Yield the parts that several nodes say they have. One of them lies, or has not been read since."""
        return (each for each in self.records.values() if len({place.node for place in each.open_places}) > 1)

    def reason(self, node: NodeState, now: float) -> str:
        """Return which part of a node counts as a lemon and why, or ""."""
        for part in parts_of(node):
            if part.key and self.is_held_by(part.key, node.node) and (why := self.lemon(part.key, now)):
                return why
        return ""

    def lemon(self, key: Key, now: float) -> str:
        """Return why a part counts as a lemon among those of its kind, or ""."""
        record = self.records.get(key)
        if record is None or record.failures < self.limits.lemon_failures:
            return ""
        others = [each.watched(now) for each in self.records.values() if each.kind == record.kind]
        why = excess_of_failures(record.watched(now), others, self.limits, now)
        nodes = len({each.node for each in record.places})
        return f"lemon: {record.kind} {record.serial}, in {nodes} nodes so far, {why}" if why else ""


def parts_of(node: NodeState) -> tuple[HostPart, ...]:
    return node.inventory.parts if node.inventory else ()
