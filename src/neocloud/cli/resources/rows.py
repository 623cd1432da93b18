"""Tables of resources, derived from their descriptors."""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neocloud.cli.output import JsonObject, View, fields_table, table
from neocloud.core import contract

SPEC_COLUMNS = 3
LONGEST_CELL = 60


def list_table(descriptor: Descriptor, items: Iterable[Any]) -> View:
    """Return a row per resource: name, state, the first plain spec fields in use, id."""
    items = list(items)
    if "metadata" not in descriptor.fields_by_name:
        return table(["VALUE"], ((contract.to_json(item),) for item in items))
    fields = [
        field
        for field in _spec_fields(descriptor)
        if any(_plain(getattr(item.spec, field.name), field) for item in items)
    ]
    columns = fields[:SPEC_COLUMNS]
    has_state = _state_field(descriptor) is not None
    headers = ["NAME", *(["STATE"] if has_state else []), *(_title(field) for field in columns), "ID"]
    rows = (
        [
            item.metadata.name,
            *([_state(item)] if has_state else []),
            *(_plain(getattr(item.spec, field.name), field) for field in columns),
            item.metadata.id,
        ]
        for item in items
    )
    return table(headers, rows)


def single_table(document: JsonObject) -> View:
    """Return every name and value of one answer, with dotted paths."""
    return fields_table(_flattened(document, ""))


def _flattened(value: object, path: str) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _flattened(inner, f"{path}[{index}]")
    else:
        yield path, value


def _spec_fields(descriptor: Descriptor) -> list[FieldDescriptor]:
    spec = descriptor.fields_by_name.get("spec")
    if spec is None or spec.message_type is None:
        return []
    return [field for field in spec.message_type.fields if _is_plain(field)]


def _is_plain(field: FieldDescriptor) -> bool:
    if contract.annotations(field).is_secret:
        return False
    if field.message_type is not None:
        return field.is_repeated and "name" in field.message_type.fields_by_name
    return not field.is_repeated and field.cpp_type != field.CPPTYPE_BOOL


def _plain(value: Any, field: FieldDescriptor) -> str:
    if field.is_repeated:
        return ", ".join(item.name for item in value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name if value else ""
    text = "" if value in (0, "") else str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."


def _state_field(descriptor: Descriptor) -> FieldDescriptor | None:
    status = descriptor.fields_by_name.get("status")
    state = status.message_type.fields_by_name.get("state") if status and status.message_type else None
    return state if state is not None and state.enum_type is not None else None


def _state(item: Any) -> str:
    field = _state_field(item.DESCRIPTOR)
    assert field is not None and field.enum_type is not None, "a list of them has no states"
    return field.enum_type.values_by_number[item.status.state].name


def _title(field: FieldDescriptor) -> str:
    return field.name.replace("_", " ").upper()
