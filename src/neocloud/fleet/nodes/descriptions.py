"""Descriptions of a node beside its health: its parts, its labels and its place, after an event. Pure."""

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.parts import Reader, merged


def inventory_after(known: e.InventoryChanged | None, event: e.InventoryChanged) -> e.InventoryChanged | None:
    """Return the parts after a reading: as before, where it is late, the same, or less trusted."""
    if known is None:
        return event if event.parts else None
    is_outranked = bool(known.parts) and known.reader is Reader.HOST and event.reader is Reader.POD
    parts = event.parts if event.is_complete else merged(known.parts, event.parts)
    if is_outranked or event.at <= known.at or parts == known.parts:
        return known
    return e.InventoryChanged(event.at, event.node, event.reader, parts, event.is_complete, event.simulated)


def labels_after(known: tuple[e.Labelled, ...], event: e.Labelled) -> tuple[e.Labelled, ...]:
    same = next((each for each in known if each.key == event.key), None)
    if (same is None and not event.value) or (same is not None and event.at <= same.at):
        return known
    others = tuple(each for each in known if each.key != event.key)
    return (*others, event) if event.value else others
