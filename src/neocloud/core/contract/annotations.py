"""Marks of fields in the contract, and functions that clear and keep marked fields.

A mark says that a field is a secret, is set only by the cloud, or is never returned.

Options read from a private pool come back as stock classes that do not know the contract's extensions, so
their bytes are parsed again with the pool's own option classes. Each answer is computed once, also whether a
message type can hold a marked field at all; most messages cost one look-up.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.message import Message

from neocloud.core.contract.registry import Field, MessageType, message, pack, pool, unpack

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any as PackedMessage

M = TypeVar("M", bound=Message)
PARTS = ("spec", "status")
_IMMUTABLE = "IMMUTABLE"
_PACKED = "google.protobuf.Any"


@dataclass(frozen=True)
class Nid:
    """The types of an id in a field: type prefixes of the resource and of its allowed parents."""

    resources: tuple[str, ...]
    parents: tuple[str, ...]


@dataclass(frozen=True)
class FieldAnnotations:
    behaviors: frozenset[str] = frozenset()
    """Names of nebius.FieldBehavior, including those of the field's oneof."""
    is_sensitive: bool = False
    is_credentials: bool = False
    nid: Nid | None = None
    is_immutable_choice: bool = False
    """It is IMMUTABLE as the choice of its oneof, and its own fields say which of them are."""

    @property
    def is_output_only(self) -> bool:
        return "OUTPUT_ONLY" in self.behaviors or "PUBLIC_OUTPUT_ONLY" in self.behaviors

    @property
    def is_input_only(self) -> bool:
        return "INPUT_ONLY" in self.behaviors

    @property
    def is_secret(self) -> bool:
        return self.is_sensitive or self.is_credentials


def annotations(field: Field) -> FieldAnnotations:
    """Return the annotations of a field."""
    owner = field.containing_type
    assert owner is not None, f"{field.full_name} is an extension."
    return message_annotations(owner)[field.name]


@cache
def message_annotations(descriptor: MessageType) -> dict[str, FieldAnnotations]:
    """Return the annotations of all fields of a message type, by field name."""
    return {field.name: _read(field) for field in descriptor.fields}


@cache
def resource_behaviors(descriptor: MessageType) -> frozenset[str]:
    """Return the names of nebius.ResourceBehavior of a message type: MOVABLE, UNNAMED, IMMUTABLE_NAME."""
    return _names(_with_extensions(descriptor.GetOptions()), "nebius.resource_behavior")


def _read(field: Field) -> FieldAnnotations:
    options = _with_extensions(field.GetOptions())
    own = behaviors = _names(options, "nebius.field_behavior")
    if field.containing_oneof is not None:
        of_oneof = _with_extensions(field.containing_oneof.GetOptions())
        behaviors |= _names(of_oneof, "nebius.oneof_behavior")
    nid = None
    if options.HasExtension(_extension("nebius.nid")):
        settings = options.Extensions[_extension("nebius.nid")]
        nid = Nid(tuple(settings.resource), tuple(settings.parent_resource))
    return FieldAnnotations(
        behaviors=behaviors,
        is_sensitive=bool(options.Extensions[_extension("nebius.sensitive")]),
        is_credentials=bool(options.Extensions[_extension("nebius.credentials")]),
        nid=nid,
        is_immutable_choice=_IMMUTABLE in behaviors - own and _has_immutable_fields(field),
    )


def _has_immutable_fields(field: Field) -> bool:
    if field.message_type is None:
        return False
    options = (_with_extensions(each.GetOptions()) for each in field.message_type.fields)
    return any(_IMMUTABLE in _names(each, "nebius.field_behavior") for each in options)


def _with_extensions(options: Message) -> Message:
    return message(options.DESCRIPTOR.full_name).FromString(options.SerializeToString())


@cache
def _extension(name: str) -> Any:
    return pool().FindExtensionByName(name)


def _names(options: Message, extension_name: str) -> frozenset[str]:
    extension = _extension(extension_name)
    names = extension.enum_type.values_by_number
    return frozenset(names[number].name for number in options.Extensions[extension])


def redact(value: M) -> M:
    """Return a copy without the fields that are marked sensitive or credentials, also inside Any values."""
    copy = type(value)()
    copy.CopyFrom(value)
    _clear(copy, _is_secret)
    return copy


def clear_output_only(value: Message) -> None:
    """Clear, in place, what only the cloud may set."""
    _clear(value, _is_output_only)


def clear_input_only(value: Message) -> None:
    """Clear, in place, what is never returned to a client."""
    _clear(value, _is_input_only)


def clear_secrets(value: Message) -> None:
    """Clear, in place, the fields that are marked sensitive or credentials."""
    _clear(value, _is_secret)


@cache
def secret_parts(kind: str) -> frozenset[str]:
    """Return the parts of a resource, "spec" and "status", that can hold a secret.

    None for a kind that is not of the contract.
    """
    try:
        fields = message(kind).DESCRIPTOR.fields_by_name
    except LookupError:
        return frozenset()
    return frozenset(
        part for part in PARTS if part in fields and _may_hold(fields[part].message_type, _is_secret)
    )


def holds_secrets(value: Message) -> bool:
    """Return whether any secret field of this message has a value."""
    return _may_hold(value.DESCRIPTOR, _is_secret) and redact(value) != value


def keep_secrets(new: M, current: M, *, only_unreturned: bool = False) -> None:
    """Fill in, in place, every secret that is blank in `new` and has a value in `current`.

    For an update by a caller who was shown `current` without its secrets; `only_unreturned`: without those
    that no caller is ever shown. Elements of lists belong together
    when they are equal except for their secrets. A member of a oneof stays blank when another one is chosen.
    """
    if not _may_hold(new.DESCRIPTOR, _is_secret):
        return
    known = message_annotations(new.DESCRIPTOR)
    for field in new.DESCRIPTOR.fields:
        if known[field.name].is_secret and (known[field.name].is_input_only or not only_unreturned):
            _keep_field(new, current, field)
        elif field.message_type is not None:
            for each, old in _pairs(new, current, field):
                keep_secrets(each, old, only_unreturned=only_unreturned)


def _is_secret(field: FieldAnnotations) -> bool:
    return field.is_secret


def _is_output_only(field: FieldAnnotations) -> bool:
    return field.is_output_only


def _is_input_only(field: FieldAnnotations) -> bool:
    return field.is_input_only


_Test = Callable[[FieldAnnotations], bool]


def _clear(value: Message, test: _Test) -> None:
    descriptor = value.DESCRIPTOR
    if not _may_hold(descriptor, test):
        return
    if descriptor.full_name == _PACKED:
        _clear_inside(cast("PackedMessage", value), test)
        return
    known = message_annotations(descriptor)
    for field, content in value.ListFields():
        if not field.is_extension and test(known[field.name]):
            value.ClearField(field.name)
        elif field.message_type is not None:
            for nested in _nested(field, content):
                _clear(nested, test)


def _clear_inside(packed: "PackedMessage", test: _Test) -> None:
    try:
        inner = unpack(packed)
    except LookupError:
        packed.Clear()
        return
    _clear(inner, test)
    packed.CopyFrom(pack(inner))


def _nested(field: Field, content: Any) -> Iterable[Message]:
    if not field.is_repeated:
        return (content,)
    if _is_map(field):
        return (entry for entry in content.values() if isinstance(entry, Message))
    return content


@cache
def _may_hold(descriptor: MessageType, test: _Test) -> bool:
    seen: set[str] = set()

    def search(current: MessageType) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        if current.full_name == _PACKED:
            return test is _is_secret
        if any(test(found) for found in message_annotations(current).values()):
            return True
        return any(search(field.message_type) for field in current.fields if field.message_type is not None)

    return search(descriptor)


def _keep_field(new: Message, current: Message, field: Field) -> None:
    oneof = field.containing_oneof
    has_other = oneof is not None and new.WhichOneof(oneof.name) not in (None, field.name)
    old = getattr(current, field.name)
    if has_other or _is_present(new, field) or not _is_present(current, field):
        return
    if field.is_repeated:
        getattr(new, field.name).MergeFrom(old)
    elif field.message_type is not None:
        getattr(new, field.name).CopyFrom(old)
    else:
        setattr(new, field.name, old)


def _is_present(value: Message, field: Field) -> bool:
    """An empty text counts as blank, also where the field could tell it from an unset one."""
    if field.message_type is not None and not field.is_repeated:
        return value.HasField(field.name)
    return bool(getattr(value, field.name))


def _pairs(new: Message, current: Message, field: Field) -> Iterator[tuple[Message, Message]]:
    """Yield the messages in the field that belong together."""
    content, old = getattr(new, field.name), getattr(current, field.name)
    assert field.message_type is not None
    if not field.is_repeated:
        if new.HasField(field.name) and current.HasField(field.name):
            yield content, old
    elif _is_map(field):
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((content[key], old[key]) for key in content if key in old)
    elif _may_hold(field.message_type, _is_secret):
        yield from _alike(content, old)


def _alike(new: Iterable[Message], old: Iterable[Message]) -> Iterator[tuple[Message, Message]]:
    left = [(redact(each), each) for each in old]
    for each in new:
        shown = redact(each)
        index = next((index for index, (known, _) in enumerate(left) if known == shown), None)
        if index is not None:
            yield each, left.pop(index)[1]


def _is_map(field: Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
