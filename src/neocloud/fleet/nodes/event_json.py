"""Events of nodes as JSON objects, and back.

Reading is strict: a document that is not an event exactly as this release writes it is refused, since a state
that is folded over half-read events would be wrong without a sign of it. A field that a later release adds
has to be given a default in `ADDED` here, so that older events stay readable.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import cast

import msgspec

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event
from neocloud.fleet.nodes.parts import LONGEST, MOST_PARTS, HostPart

MAX_TEXT = 4000
"""Longest text of an event; samples of probes are cut before."""

TYPES: Mapping[str, type[Event]] = {
    found.__name__: found
    for found in (
        *(e.Registered, e.Booted, e.Verdict, e.Judged, e.DrainRequested, e.DrainReleased, e.Drained),
        *(e.StepStarted, e.StepEnded, e.VerificationStarted, e.VerificationEnded),
        *(e.SpareReserved, e.Attached, e.Returned, e.Assigned, e.Unassigned, e.Moved),
        *(e.Occupied, e.Vacated, e.RecordElsewhere, e.InventoryChanged, e.Labelled, e.Placed),
    )
}
"""Every event that is stored, by the name under which it is."""

ADDED: Mapping[tuple[str, str], object] = {
    ("Judged", "by"): "",
    ("DrainRequested", "is_dead"): False,
    ("Verdict", "devices"): "",
    ("Moved", "why"): "",
    ("Booted", "ended"): "",
}
"""Values of fields that events of older releases lack, by event and field."""

_FIELDS: Mapping[str, frozenset[str]] = {
    name: frozenset(each.name for each in fields(found)) for name, found in TYPES.items()
}


class BadEvent(ValueError):
    """A document that is not an event; the message says why."""


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, the same for equal events. Raises BadEvent for one that could not
    be read back."""
    name = type(event).__name__
    if name not in TYPES:
        raise BadEvent(f"{name} is not an event that is stored")
    document = msgspec.to_builtins(_event(name, msgspec.to_builtins(event)))
    return json.dumps({"type": name, **document}, separators=(",", ":"), sort_keys=True).encode()


def decode(body: bytes) -> Event:
    """Return the event of a document that `encode` wrote. Raises BadEvent."""
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadEvent(f"not a JSON object: {error}") from None
    name = document.pop("type", None)
    if not isinstance(name, str) or name not in TYPES:
        raise BadEvent(f"no event has the type {name!r}")
    if unknown := sorted(document.keys() - _FIELDS[name]):
        raise BadEvent(f"{name} has no field {', '.join(unknown)}")
    for field in sorted(_FIELDS[name] - document.keys()):
        if (name, field) not in ADDED:
            raise BadEvent(f"{name} lacks the field {field}")
        document[field] = ADDED[name, field]
    return _event(name, document)


def _event(name: str, document: dict[str, object]) -> Event:
    """Return the event with these fields. Raises BadEvent."""
    try:
        event = msgspec.convert(document, TYPES[name])
    except msgspec.ValidationError as error:
        raise BadEvent(f"{name}: {error}") from None
    for field in _FIELDS[name]:
        value, where = getattr(event, field), f"{name}.{field}"
        if isinstance(value, float) and not math.isfinite(value):
            raise BadEvent(f"{where} is not a finite number")
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise BadEvent(f"{where} is longer than {MAX_TEXT} characters")
        if isinstance(value, tuple):
            _check_parts(where, cast(tuple[HostPart, ...], value))
    return event


def _check_parts(where: str, parts: tuple[HostPart, ...]) -> None:
    if len(parts) > MOST_PARTS:
        raise BadEvent(f"{where} has more than {MOST_PARTS} entries")
    if any(len(each) > LONGEST for part in parts for each in part):
        raise BadEvent(f"{where} has a text of more than {LONGEST} characters")
