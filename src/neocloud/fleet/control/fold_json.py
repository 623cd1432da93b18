"""The state of a fold over events as JSON, and back: nodes, breakers, incidents and outages.

The fold can always be made again from its events, so there is one form, for the code that wrote it. Values
keep their types and order. `Limits` are left out, and are those of the reader.
"""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson

from neocloud.fleet.control import breakers, controller, failing, precision
from neocloud.fleet.nodes import incidents, lemons, node_state, outages, part_history, parts, repairs
from neocloud.fleet.nodes.event_json import TYPES
from neocloud.fleet.nodes.events import CheckScope, Phase, Status
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import Limits

CLASSES: Mapping[str, type[Any]] = {
    each.__name__: each
    for each in (
        *TYPES.values(),
        *(Action, Phase, CheckScope, Status, Suite),
        *(node_state.NodeState, node_state.Certificate, node_state.Attempt),
        *(breakers.Breakers, breakers.Trip, breakers.CheckRate, precision.Precision, precision.Judgements),
        *(failing.FailingVerdicts, failing.Failing),
        *(lemons.Lemons, lemons.LemonRecord, controller.Fleet),
        *(
            parts.HostPart,
            parts.Reader,
            part_history.PartHistory,
            part_history.PartRecord,
            part_history.PartLocation,
        ),
        *(incidents.Incidents, incidents.Incident, incidents.IncidentStep),
        *(outages.Outages, outages.Outage, outages.Cause),
        *(repairs.Repairs, repairs.Repair, repairs.RepairKind),
    )
}
"""The classes that a fold is made of. They run no code of their own when they are built."""
FOLDED_BY = ("policy", "nodes", "control")
"""The folders whose code folds."""


class BadFold(ValueError):
    """A document that is not a fold, or a value that this code does not keep; the message says why."""


def encode(value: object, more: Iterable[type[Any]] = ()) -> bytes:
    """Return the value as JSON. `more`: classes of the caller. Raises BadFold for one of another class."""
    known = {**CLASSES, **{each.__name__: each for each in more}}
    try:
        return orjson.dumps(_Writer(known).plain(value))
    except (TypeError, RecursionError) as error:
        raise BadFold(f"it cannot be written: {error}"[:200]) from error


def decode(body: bytes, limits: Limits, more: Iterable[type[Any]] = ()) -> Any:
    """Return what `encode` was given. Raises BadFold."""
    known = {**CLASSES, **{each.__name__: each for each in more}}
    try:
        return _Reader(known, limits).value(orjson.loads(body))
    except BadFold:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadFold(f"it cannot be read: {error}"[:200]) from error


@cache
def code_version(*more: Path) -> str:
    """Return what changes with each change of the code that folds, its own files and those given. Another
    version may come to another state from the same events."""
    found = hashlib.sha256()
    control = Path(__file__).parent
    sources = (each for room in FOLDED_BY for each in sorted((control.parent / room).glob("*.py")))
    for path in (*sources, control / "judging.json", *more):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


class _Writer:
    def __init__(self, known: Mapping[str, type[Any]]) -> None:
        self.known = known

    def plain(self, value: Any) -> Any:
        """A list begins with what it is; everything else stands for itself."""
        kind = cast("type[Any]", type(value))
        if value is None or kind is str or kind is bool or kind is int:
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *map(self.plain, value)]
        if kind is frozenset or kind is set:
            return [kind.__name__, *sorted(map(self.plain, value))]
        if kind is dict or kind is Counter:
            flat = (self.plain(part) for pair in cast("dict[Any, Any]", value).items() for part in pair)
            return [kind.__name__, *flat]
        if isinstance(value, Limits):
            return ["limits"]
        if self.known.get(kind.__name__) is not kind:
            raise BadFold(f"{kind.__name__} is not a class that is kept")
        if isinstance(value, Enum):
            return ["enum", kind.__name__, value.value]
        if isinstance(value, tuple):  # one with names
            return ["data", kind.__name__, *map(self.plain, cast("tuple[Any, ...]", value))]
        if is_dataclass(value):
            return ["data", kind.__name__, *(self.plain(getattr(value, each)) for each in _names(kind))]
        return ["object", kind.__name__, self.plain(vars(cast(object, value)))]


_SEQUENCES: Mapping[type[Any], str] = {list: "list", tuple: "tuple", deque: "deque"}
_EMPTY = {"list": list, "tuple": tuple, "deque": deque, "frozenset": frozenset, "set": set}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


class _Reader:
    def __init__(self, known: Mapping[str, type[Any]], limits: Limits) -> None:
        self.known, self.limits = known, limits

    def value(self, plain: Any) -> Any:
        """Return what `_Writer.plain` was given."""
        if type(plain) is not list:
            return plain
        kind, *parts = cast("list[Any]", plain)
        match kind:
            case "list" | "tuple" | "deque" | "frozenset" | "set":
                return cast(Any, _EMPTY[kind](map(self.value, parts)))
            case "dict" | "Counter":
                read = list(map(self.value, parts))
                pairs = dict(zip(read[::2], read[1::2], strict=True))
                return pairs if kind == "dict" else Counter(pairs)
            case "float":
                return float(parts[0])
            case "limits":
                return self.limits
            case "enum":
                return self.known[parts[0]](parts[1])
            case "data":
                return self.known[parts[0]](*map(self.value, parts[1:]))
            case "object":
                wanted: Any = self.known[parts[0]]
                if is_dataclass(wanted):
                    raise BadFold(f"{parts[0]} has fields")
                made: Any = wanted.__new__(wanted)
                made.__dict__.update(self.value(parts[1]))
                return made
            case _:
                raise BadFold(f"it has a {kind!r}")
