# pyright: strict
"""Events of nodes as JSON objects, and back.

Reading is strict: a document that is no event exactly as this release writes it is refused, since a state
that is folded over half-read events would be wrong without a sign of it. A field that a later release adds
has to be given a default in `ADDED` here, so that older events stay readable.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, cast, get_type_hints

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event
from neocloud.fleet.nodes.parts import LONGEST, MOST_PARTS, Part

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

_FIELDS: Mapping[str, Mapping[str, Any]] = {
    name: {each.name: get_type_hints(found)[each.name] for each in fields(found)}
    for name, found in TYPES.items()
}
"""The types of the fields of each event."""
_ENUMS = frozenset(
    wanted
    for of_event in _FIELDS.values()
    for wanted in of_event.values()
    if isinstance(wanted, type) and issubclass(wanted, StrEnum)
)


class BadEvent(ValueError):
    """A document that is no event; the message says why."""


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, the same for equal events. Raises BadEvent for one that could not
    be read back."""
    name = type(event).__name__
    if name not in TYPES:
        raise BadEvent(f"{name} is not an event that is stored")
    document: dict[str, object] = {"type": name}
    for field, wanted in _FIELDS[name].items():
        document[field] = _checked(name, field, getattr(event, field), wanted)
    return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def decode(body: bytes) -> Event:
    """Return the event of a document that `encode` wrote. Raises BadEvent."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadEvent("not a JSON object")
    document = cast(dict[str, object], found)
    name = document.pop("type", None)
    if not isinstance(name, str) or name not in TYPES:
        raise BadEvent(f"no event has the type {name!r}")
    known = _FIELDS[name]
    if unknown := sorted(document.keys() - known.keys()):
        raise BadEvent(f"{name} has no field {', '.join(unknown)}")
    values: dict[str, Any] = {}
    for field, wanted in known.items():
        if field in document:
            value = document[field]
        elif (name, field) in ADDED:
            value = ADDED[name, field]
        else:
            raise BadEvent(f"{name} lacks the field {field}")
        values[field] = _checked(name, field, value, wanted)
    return TYPES[name](**values)


def _checked(name: str, field: str, value: object, wanted: Any) -> object:
    """Return the value as the field's type. Raises BadEvent."""
    if wanted is str and type(value) is str and len(value) <= MAX_TEXT:
        return value
    if wanted is float and type(value) is float and math.isfinite(value):
        return value
    where = f"{name}.{field}"
    if wanted == tuple[Part, ...]:
        return _parts(where, value)
    if wanted in _ENUMS:
        try:
            return wanted(value)  # type: ignore[arg-type]
        except ValueError:
            raise BadEvent(f"{where} cannot be {value!r}") from None
    if wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadEvent(f"{where} is not a finite number: {value!r}")
        return float(value)
    if type(value) is not wanted:
        raise BadEvent(f"{where} is not of the type {wanted.__name__}: {value!r}")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise BadEvent(f"{where} is longer than {MAX_TEXT} characters")
    return value


def _parts(where: str, value: object) -> tuple[Part, ...]:
    """Return the parts of a node, each a list of its fields."""
    if not isinstance(value, list | tuple):
        raise BadEvent(f"{where} is not a list")
    rows = cast(list[object], value)
    if len(rows) > MOST_PARTS:
        raise BadEvent(f"{where} has more than {MOST_PARTS} entries")
    return tuple(_part(where, row) for row in rows)


def _part(where: str, row: object) -> Part:
    values = cast(list[object], row) if isinstance(row, list | tuple) else []
    texts = [each for each in values if isinstance(each, str)]
    if len(values) != len(Part._fields) or len(texts) < len(values):
        raise BadEvent(f"{where} has an entry that is not {len(Part._fields)} texts")
    if any(len(each) > LONGEST for each in texts):
        raise BadEvent(f"{where} has a text of more than {LONGEST} characters")
    return Part(*texts)
