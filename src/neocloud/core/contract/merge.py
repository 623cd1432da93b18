"""Merge an Update request into the resource as it is, by the contract's rules.

A field changes when it has a value in the request or is named in the reset mask; everything else stays, so
a client that does not know a field cannot erase it. Fields only the cloud may set are never taken from a
request. The result is a new message; whether it is legal is for others to say.

The grammar of reset masks (commas, dots, parentheses, `*`, list indexes, quoted keys) is the SDK's own; its
parser is used, so both ends always agree.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message
from nebius.base import fieldmask
from nebius.base.fieldmask_parser import parse

from neocloud.core.contract.annotations import FieldAnnotations, message_annotations
from neocloud.core.contract.errors import bad_field
from neocloud.core.contract.registry import Field, MessageType

M = TypeVar("M", bound=Message)

MAX_LENGTH = 65_536
"""Characters of a reset mask."""
_MAX_DEPTH = 64
_KEPT_METADATA = frozenset({"parent_id", "name"})
"""Clients name these in masks whenever they leave them unset; that never means "erase"."""
_METADATA = "nebius.common.v1.ResourceMetadata"


@dataclass(frozen=True)
class Mask:
    """A set of field paths. An empty tree names nothing below itself."""

    trees: tuple[fieldmask.Mask, ...] = ()

    def child(self, name: str) -> "Mask | None":
        """Return what the mask says below `name` (a field, list index or map key); None when it does not
        name it."""
        found: list[fieldmask.Mask] = []
        for tree in self.trees:
            if tree.any is not None:
                found.append(tree.any)
            part = tree.field_parts.get(fieldmask.FieldKey(name))
            if part is not None:
                found.append(part)
        return Mask(tuple(found)) if found else None


def parse_mask(text: str) -> Mask:
    """Return the mask in an X-ResetMask header; an empty header is an empty mask."""
    if len(text) > MAX_LENGTH or text.count("(") > _MAX_DEPTH:
        raise bad_field(
            "x-resetmask", f"is too large: at most {MAX_LENGTH} characters and {_MAX_DEPTH} groups."
        )
    try:
        return Mask((parse(text),))
    except fieldmask.Error as error:
        raise bad_field("x-resetmask", f"cannot be read: {error}") from None


def merge_update(current: M, request: Message, mask: Mask) -> M:
    """Return `current` (a resource) with the fields of the same names of its UpdateXRequest merged in."""
    merged = type(current)()
    merged.CopyFrom(current)
    known = message_annotations(current.DESCRIPTOR)
    for field in current.DESCRIPTOR.fields:
        source = request.DESCRIPTOR.fields_by_name.get(field.name)
        if source is None or source.message_type != field.message_type or known[field.name].is_output_only:
            continue
        # Clients that leave the whole spec out name it in the mask like any unset field: it stays as it is.
        if request.HasField(field.name):
            _merge_field(merged, request, field, mask)
    return merged


def _merge_message(target: Message, source: Message, mask: Mask | None) -> None:
    descriptor = target.DESCRIPTOR
    known = message_annotations(descriptor)
    mask = mask or Mask()
    fields = [field for field in descriptor.fields if not _is_set_by_cloud(known[field.name])]
    if descriptor.full_name == _METADATA:
        fields = [field for field in fields if field.name != "resource_version"]
    # Fields are emptied before others are set: a oneof member must not be lost to its sibling's reset.
    for field in sorted(fields, key=lambda field: _is_set(source, field)):
        _merge_field(target, source, field, mask)


def _merge_field(target: Message, source: Message, field: Field, mask: Mask) -> None:
    inner = mask.child(field.name)
    if not _is_set(source, field):
        if inner is not None and not _is_kept(field):
            target.ClearField(field.name)
    elif field.is_repeated:
        _merge_repeated(target, source, field, inner)
    elif field.message_type is not None and not _is_value(field.message_type):
        getattr(target, field.name).SetInParent()
        _merge_message(getattr(target, field.name), getattr(source, field.name), inner)
    elif field.message_type is not None:
        getattr(target, field.name).CopyFrom(getattr(source, field.name))
    else:
        setattr(target, field.name, getattr(source, field.name))


def _merge_repeated(target: Message, source: Message, field: Field, mask: Mask | None) -> None:
    new, values = getattr(source, field.name), getattr(target, field.name)
    if field.message_type is None:
        values[:] = new
    elif field.message_type.GetOptions().map_entry:
        _merge_map(values, new, field.message_type, mask)
    else:
        _merge_list(values, new, mask)


def _merge_list(values: Any, new: Any, mask: Mask | None) -> None:
    del values[len(new) :]
    for index, element in enumerate(new):
        if index >= len(values) or _is_value(element.DESCRIPTOR):
            if index >= len(values):
                values.add()
            values[index].CopyFrom(element)
        else:
            _merge_message(values[index], element, mask.child(str(index)) if mask else None)


def _merge_map(values: Any, new: Any, entry: MessageType, mask: Mask | None) -> None:
    has_messages = entry.fields_by_name["value"].message_type is not None
    for key in [key for key in values if key not in new]:
        del values[key]
    for key in new:
        if not has_messages:
            values[key] = new[key]
        elif key not in values or _is_value(new[key].DESCRIPTOR):
            values[key].CopyFrom(new[key])
        else:
            _merge_message(values[key], new[key], mask.child(str(key)) if mask else None)


def _is_set_by_cloud(field: FieldAnnotations) -> bool:
    return field.is_output_only or "IDENTIFIER" in field.behaviors


def _is_kept(field: Field) -> bool:
    owner = field.containing_type
    return owner is not None and owner.full_name == _METADATA and field.name in _KEPT_METADATA


def _is_set(source: Message, field: Field) -> bool:
    if field.is_repeated:
        return len(getattr(source, field.name)) > 0
    if field.has_presence:
        return source.HasField(field.name)
    return getattr(source, field.name) != field.default_value


def _is_value(descriptor: MessageType) -> bool:
    """Messages that are one value, such as a Timestamp, are replaced as a whole."""
    return descriptor.file.package == "google.protobuf"
