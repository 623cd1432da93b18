"""Fields that the contract marks as sensitive or as credentials, inside the messages of resources.

Which parts of a resource can hold such a field decides what the store seals and what readers may see.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

from neocloud.core.contract.annotations import message_annotations
from neocloud.core.contract.clearing import may_hold_secrets, redact
from neocloud.core.contract.registry import message

M = TypeVar("M", bound=Message)

PARTS = ("spec", "status")


@cache
def secret_parts(kind: str) -> frozenset[str]:
    """The parts of a resource, "spec" and "status", that can hold a secret; none for a kind that is not of
    the contract."""
    try:
        fields = message(kind).DESCRIPTOR.fields_by_name
    except LookupError:
        return frozenset()
    return frozenset(part for part in PARTS if part in fields and may_hold_secrets(fields[part].message_type))


def holds_secrets(value: Message) -> bool:
    """Whether any secret field of this message has a value."""
    return may_hold_secrets(value.DESCRIPTOR) and redact(value) != value


def keep_secrets(asked: M, current: M) -> None:
    """Fill in, in place, every secret that is blank in `asked` and has a value in `current`.

    For an update by a caller who was shown `current` without its secrets. Elements of lists belong together
    when they are equal but for their secrets. A member of a oneof stays blank when another one is chosen.
    """
    if not may_hold_secrets(asked.DESCRIPTOR):
        return
    known = message_annotations(asked.DESCRIPTOR)
    for field in asked.DESCRIPTOR.fields:
        if known[field.name].is_secret:
            _keep_field(asked, current, field)
        elif field.message_type is not None:
            for each, old in _pairs(asked, current, field):
                keep_secrets(each, old)


def _keep_field(asked: Any, current: Any, field: Any) -> None:
    oneof = field.containing_oneof
    has_other = oneof is not None and asked.WhichOneof(oneof.name) not in (None, field.name)
    old = getattr(current, field.name)
    if has_other or _is_present(asked, field) or not _is_present(current, field):
        return
    if field.is_repeated:
        getattr(asked, field.name).MergeFrom(old)
    elif field.message_type is not None:
        getattr(asked, field.name).CopyFrom(old)
    else:
        setattr(asked, field.name, old)


def _is_present(value: Any, field: Any) -> bool:
    """An empty text counts as blank, also where the field could tell it from an unset one."""
    if field.message_type is not None and not field.is_repeated:
        return value.HasField(field.name)
    return bool(getattr(value, field.name))


def _pairs(asked: Any, current: Any, field: Any) -> Iterator[tuple[Any, Any]]:
    new, old = getattr(asked, field.name), getattr(current, field.name)
    if not field.is_repeated:
        if asked.HasField(field.name) and current.HasField(field.name):
            yield new, old
    elif field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((new[key], old[key]) for key in new if key in old)
    elif may_hold_secrets(field.message_type):
        yield from _alike(new, old)


def _alike(new: Any, old: Any) -> Iterator[tuple[Any, Any]]:
    left = [(redact(each), each) for each in old]
    for each in new:
        shown = redact(each)
        index = next((index for index, (known, _) in enumerate(left) if known == shown), None)
        if index is not None:
            yield each, left.pop(index)[1]
