"""Clear fields by what the contract says of them: secrets, what only the cloud sets, what is never returned.

Whether a message type can hold such a field at all is worked out once; most messages cost one look-up.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

from neocloud.core.contract.annotations import message_annotations
from neocloud.core.contract.well_known import pack, unpack

M = TypeVar("M", bound=Message)

_ANY = "google.protobuf.Any"


def redact(value: M) -> M:
    """Return a copy without the fields that are marked sensitive or credentials, also inside Any values."""
    copy = type(value)()
    copy.CopyFrom(value)
    _clear(copy, "is_secret")
    return copy


def clear_output_only(value: Message) -> None:
    """Drop, in place, what only the cloud may set."""
    _clear(value, "is_output_only")


def clear_input_only(value: Message) -> None:
    """Drop, in place, what is never returned to a client."""
    _clear(value, "is_input_only")


def clear_secrets(value: Message) -> None:
    """Drop, in place, the fields that are marked sensitive or credentials."""
    _clear(value, "is_secret")


def may_hold_secrets(descriptor: Any) -> bool:
    """Whether messages of this type can hold a field that is marked sensitive or credentials."""
    return _may_hold(descriptor, "is_secret")


def _clear(value: Any, what: str) -> None:
    descriptor = value.DESCRIPTOR
    if not _may_hold(descriptor, what):
        return
    if descriptor.full_name == _ANY:
        _clear_inside(value, what)
        return
    known = message_annotations(descriptor)
    for field, content in value.ListFields():
        if not field.is_extension and getattr(known[field.name], what):
            value.ClearField(field.name)
        elif field.message_type is not None:
            for nested in _nested(field, content):
                _clear(nested, what)


def _clear_inside(packed: Any, what: str) -> None:
    try:
        inner = unpack(packed)
    except LookupError:
        packed.Clear()
        return
    _clear(inner, what)
    packed.CopyFrom(pack(inner))


def _nested(field: Any, content: Any) -> Iterator[Any]:
    if not field.is_repeated:
        yield content
    elif field.message_type.GetOptions().map_entry:
        yield from (entry for entry in content.values() if isinstance(entry, Message))
    else:
        yield from content


@cache
def _may_hold(descriptor: Any, what: str) -> bool:
    seen: set[str] = set()

    def search(current: Any) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        if current.full_name == _ANY:
            return what == "is_secret"
        if any(getattr(found, what) for found in message_annotations(current).values()):
            return True
        return any(search(field.message_type) for field in current.fields if field.message_type is not None)

    return search(descriptor)
