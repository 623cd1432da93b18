"""Merge an Update request into the resource as it is, by the contract's rules.

A field changes when it has a value in the request or is named in the reset mask; everything else stays, so
a client that does not know a field cannot erase it. Fields only the cloud may set are never taken from a
request. The result is a new message; whether it is legal is for others to say.
"""

from typing import Any, TypeVar

from google.protobuf.message import Message

from neocloud.core.contract.annotations import FieldAnnotations, message_annotations
from neocloud.core.contract.masks import Mask

M = TypeVar("M", bound=Message)

_KEPT_METADATA = frozenset({"parent_id", "name"})
"""Clients name these in masks whenever they leave them unset; that never means "erase"."""
_METADATA = "nebius.common.v1.ResourceMetadata"


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


def _merge_message(target: Any, source: Any, mask: Mask | None) -> None:
    descriptor = target.DESCRIPTOR
    known = message_annotations(descriptor)
    mask = mask or Mask()
    fields = [f for f in descriptor.fields if not _is_the_clouds(known[f.name])]
    if descriptor.full_name == _METADATA:
        fields = [f for f in fields if f.name != "resource_version"]
    # Fields are emptied before others are set: a oneof member must not be lost to its sibling's reset.
    for field in sorted(fields, key=lambda f: _is_set(source, f)):
        _merge_field(target, source, field, mask)


def _merge_field(target: Any, source: Any, field: Any, mask: Mask) -> None:
    inner = mask.child(field.name)
    if not _is_set(source, field):
        is_kept = field.containing_type.full_name == _METADATA and field.name in _KEPT_METADATA
        if inner is not None and not is_kept:
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


def _merge_repeated(target: Any, source: Any, field: Any, mask: Mask | None) -> None:
    wanted = getattr(source, field.name)
    values = getattr(target, field.name)
    if field.message_type is None:
        values[:] = wanted
    elif field.message_type.GetOptions().map_entry:
        _merge_map(values, wanted, field, mask)
    else:
        _merge_list(values, wanted, mask)


def _merge_list(values: Any, wanted: Any, mask: Mask | None) -> None:
    del values[len(wanted) :]
    for index, element in enumerate(wanted):
        if index >= len(values) or _is_value(element.DESCRIPTOR):
            if index >= len(values):
                values.add()
            values[index].CopyFrom(element)
        else:
            _merge_message(values[index], element, mask.child(str(index)) if mask else None)


def _merge_map(values: Any, wanted: Any, field: Any, mask: Mask | None) -> None:
    has_messages = field.message_type.fields_by_name["value"].message_type is not None
    for key in [key for key in values if key not in wanted]:
        del values[key]
    for key in wanted:
        if not has_messages:
            values[key] = wanted[key]
        elif key not in values or _is_value(wanted[key].DESCRIPTOR):
            values[key].CopyFrom(wanted[key])
        else:
            _merge_message(values[key], wanted[key], mask.child(str(key)) if mask else None)


def _is_the_clouds(field: FieldAnnotations) -> bool:
    return field.is_output_only or "IDENTIFIER" in field.behaviors


def _is_set(source: Any, field: Any) -> bool:
    if field.is_repeated:
        return len(getattr(source, field.name)) > 0
    if field.has_presence:
        return source.HasField(field.name)
    return getattr(source, field.name) != field.default_value


def _is_value(descriptor: Any) -> bool:
    """Messages that are one value, such as a Timestamp: replaced as a whole."""
    return descriptor.file.package == "google.protobuf"
