"""Requests of any method of the contract, right at first and then damaged, as Hypothesis strategies.

The message descriptors say which fields there are and of which types; nothing is listed by hand but what a
field that names something may name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import SerializeToJsonError
from hypothesis import strategies as st

from neocloud.core import contract
from tests.real.security.fuzzing import values

DEEPEST = 6
MOST_DAMAGES = 5
IDEMPOTENCY, RESET_MASK = "x-idempotency-key", "x-resetmask"


@dataclass(frozen=True)
class Known:
    """The values that a caller can put into requests."""

    ids: Mapping[str, Sequence[str]]
    """By prefix: the caller's own, and those of the other tenant."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Valid requests by method path, to damage."""
    tokens: Sequence[str] = ()
    """Page tokens of real lists."""

    @property
    def all_ids(self) -> list[str]:
        return sorted({one for ids in self.ids.values() for one in ids})


@st.composite
def messages(draw: st.DrawFn, path: str, known: Known) -> Any:
    """A request of this method: valid or empty, then damaged in some places."""
    message = contract.method(path).input()
    if path in known.models and draw(st.integers(0, 3)):
        message.CopyFrom(known.models[path])
        for _ in range(draw(st.integers(1, 3)) if "spec" in message.DESCRIPTOR.fields_by_name else 0):
            _damage(draw, message.spec, known, DEEPEST - 1)
        return message
    else:
        _name_things(draw, message, path, known)
    for _ in range(draw(st.integers(0, MOST_DAMAGES))):
        _damage(draw, message, known, DEEPEST)
    return message


@st.composite
def headers(draw: st.DrawFn) -> dict[str, str]:
    """Headers that the API reads, with odd contents; printable ASCII, as gRPC asks for."""
    printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip)
    masks = st.sampled_from(
        ("*", "spec", "spec.(a", "spec.*", "a" * 5000, "spec." * 900, "(((((", "metadata.id")
    )
    found = {}
    if draw(st.integers(0, 3)) == 0:
        found[RESET_MASK] = draw(st.one_of(masks, printable))
    if draw(st.integers(0, 3)) == 0:
        found[IDEMPOTENCY] = draw(st.one_of(printable, st.just("k"), st.just("x" * 6000)))
    return found


@st.composite
def wire_bytes(draw: st.DrawFn, path: str, known: Known) -> bytes:
    """A message as bytes that no encoder writes: cut, changed, with groups, endless lengths, deep nesting."""
    body = bytearray(draw(messages(path, known)).SerializeToString()[:5000])
    how = draw(st.integers(0, 4))
    if how == 0:
        return bytes(body[: draw(st.integers(0, len(body)))])
    if how == 1 and body:
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
        return bytes(body)
    if how == 2:
        return bytes(body) + draw(st.binary(max_size=60))
    if how == 3:  # groups, or field 1 within field 1, deeper than any schema
        return draw(st.sampled_from((b"\x0b", b"\x0a\x7f", b"\x12\xff\xff\xff\xff\x07"))) * draw(
            st.sampled_from(values.DEPTHS)
        )
    return bytes(body) + b"\xfa\xff\xff\xff\x0f" + draw(st.binary(min_size=1, max_size=20))


@st.composite
def json_bodies(draw: st.DrawFn, path: str, known: Known) -> bytes:
    """A message as JSON, with values of other types in some places; or no JSON of it at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.one_of(values.nested_json().map(str.encode), st.binary(max_size=40)))
    content = _as_json(draw(messages(path, known)), proto_names=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        place: Any = content
        while isinstance(place, dict) and place:
            key = draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or draw(st.booleans()):
                place[key] = draw(values.json_values())
                break
            place = place[key]
        else:
            if isinstance(place, dict):
                place[draw(values.texts(well_formed=False))[:2000]] = draw(values.json_values())
    return values.json_text(content)


def _as_json(message: Any, *, proto_names: bool) -> dict[str, Any]:
    try:
        return contract.to_dict(message, proto_names=proto_names)
    except (TypeError, ValueError, SerializeToJsonError):  # JSON has no words for it
        return {}


def _name_things(draw: st.DrawFn, message: Any, path: str, known: Known) -> None:
    """Fill in the ids at the top, so that the request is about something."""
    for each in message.DESCRIPTOR.fields:
        if each.name == "metadata" and each.message_type is not None and not each.is_repeated:
            for inner in each.message_type.fields:
                if inner.name in ("id", "parent_id", "name") and inner.message_type is None:
                    setattr(message.metadata, inner.name, draw(_texts_of(inner, known)))
        elif each.message_type is None and not each.is_repeated and _is_text(each):
            setattr(message, each.name, draw(_texts_of(each, known)))


def _damage(draw: st.DrawFn, message: Any, known: Known, depth: int) -> None:
    """Change one thing somewhere in the message."""
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    each = draw(st.sampled_from(fields))
    if _is_map(each):
        _damage_map(draw, getattr(message, each.name), each, known, depth)
    elif each.message_type is not None:
        if depth == 0:
            return
        if not each.is_repeated:
            inner = getattr(message, each.name)
            inner.SetInParent()
        else:
            items = getattr(message, each.name)
            if draw(st.integers(0, 15)) == 0:
                items.extend([items.add()] * draw(st.sampled_from(values.MANY[:2])))
            inner = items[0] if items and draw(st.booleans()) else items.add()
        _damage(draw, inner, known, depth - 1)
    elif each.is_repeated:
        value = draw(scalars(each, known))
        count = draw(st.sampled_from((1, 1, 2, *values.MANY))) if len(str(value)[:100]) < 100 else 1
        getattr(message, each.name).extend([value] * count)
    else:
        setattr(message, each.name, draw(scalars(each, known)))


def _damage_map(draw: st.DrawFn, content: Any, each: Any, known: Known, depth: int) -> None:
    key, value = (each.message_type.fields_by_name[name] for name in ("key", "value"))
    if value.message_type is not None:
        _damage(draw, content[draw(scalars(key, known))], known, max(0, depth - 1))
        return
    content[draw(scalars(key, known))] = draw(scalars(value, known))
    if _is_text(key) and draw(st.integers(0, 7)) == 0:
        one = draw(scalars(value, known))
        one = one[:20] if isinstance(one, str | bytes) else one
        for number in range(draw(st.sampled_from(values.MANY))):
            content[f"k{number}"] = one


def scalars(each: Any, known: Known) -> st.SearchStrategy[Any]:
    """Values of the field's type, of which few are right."""
    kind = each.cpp_type
    if kind == each.CPPTYPE_STRING:
        return _texts_of(each, known) if _is_text(each) else values.byte_strings()
    if kind == each.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (each.CPPTYPE_FLOAT, each.CPPTYPE_DOUBLE):
        return values.floats()
    if kind == each.CPPTYPE_ENUM:
        numbers = [one.number for one in each.enum_type.values]
        return st.one_of(st.sampled_from(numbers), st.sampled_from((-1, 99, 2**31 - 1, -(2**31))))
    low, high = {
        each.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        each.CPPTYPE_UINT32: (0, 2**32 - 1),
        each.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        each.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]
    return values.integers(low, high)


def _texts_of(each: Any, known: Known) -> st.SearchStrategy[str]:
    choices: list[st.SearchStrategy[str]] = [values.texts()]
    nid = contract.annotations(each).nid
    named = [one for prefix in (nid.resources if nid else ()) for one in known.ids.get(prefix, ())]
    if named:
        choices = [st.sampled_from(named), st.sampled_from(named), *choices]
    if each.name.endswith("id") or each.name.endswith("ids"):
        choices.insert(0, st.sampled_from(known.all_ids))
    if each.name == "page_token" and known.tokens:
        damaged = st.sampled_from(known.tokens).flatmap(
            lambda token: st.integers(0, len(token)).map(lambda at: token[:at] + "A" + token[at + 1 :])
        )
        choices = [st.sampled_from(list(known.tokens)), damaged, *choices]
    return st.one_of(choices)


def _is_text(each: Any) -> bool:
    return each.type == each.TYPE_STRING


def _is_map(each: Any) -> bool:
    return each.message_type is not None and each.message_type.GetOptions().map_entry
