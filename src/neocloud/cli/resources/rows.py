"""Tables of resources, derived from their descriptors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neocloud.cli.output import JsonObject, View, fields_table, size_text, table
from neocloud.core import contract

SPEC_COLUMNS = 3
LONGEST_CELL = 60
SINGLE_ADDRESS = "/32"


def list_table(descriptor: Descriptor, items: Iterable[Any], columns: Sequence[tuple[str, str]] = ()) -> View:
    """Return a row per resource: name, state, the given columns, id. Of items that are no resources: the
    given columns alone, or else all as JSON.

    A column is a header and the path of a field. By default they are the first plain spec fields in use.
    """
    items = list(items)
    columns = [(header, path) for header, path in columns if path.split(".")[0] in descriptor.fields_by_name]
    if "metadata" not in descriptor.fields_by_name and columns:
        rows = ([text_at(item, path) for _, path in columns] for item in items)
        return table([header for header, _ in columns], rows)
    if "metadata" not in descriptor.fields_by_name:
        return table(["VALUE"], ((contract.to_json(item),) for item in items))
    chosen = [(header, [text_at(item, path) for item in items]) for header, path in columns]
    chosen = chosen or _used_columns(descriptor, items)
    has_state = _state_field(descriptor) is not None
    has_ids = any(item.metadata.id != item.metadata.name for item in items) or not items
    headers = ["NAME", *(["STATE"] if has_state else []), *(header for header, _ in chosen)]
    headers += ["ID"] if has_ids else []
    rows = (
        [
            item.metadata.name,
            *([_state(item)] if has_state else []),
            *(cells[number] for _, cells in chosen),
            *([item.metadata.id] if has_ids else []),
        ]
        for number, item in enumerate(items)
    )
    return table(headers, rows)


def _used_columns(descriptor: Descriptor, items: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """Return the first plain spec fields that say something: not empty, and not the same as another."""
    found: list[tuple[str, list[str]]] = []
    for field in _spec_fields(descriptor):
        cells = [_plain(getattr(item.spec, field.name), field) for item in items]
        if any(cells) and all(cells != other for _, other in found):
            found.append((_title(field), cells))
    return found[:SPEC_COLUMNS]


def text_at(item: Any, path: str) -> str:
    """Return the text of a field, such as "status.network_interfaces.ip_address.address"."""
    values = [item]
    for name in path.split("."):
        found = [getattr(value, name) for value in values]
        values = [
            inner
            for each in found
            for inner in (each if isinstance(each, Sequence) and not isinstance(each, str) else [each])
        ]
    return ", ".join(str(value).removesuffix(SINGLE_ADDRESS) for value in values if value not in (0, ""))


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
        yield path, _readable(path, value)


def _readable(path: str, value: object) -> object:
    """Return a size in bytes with its usual unit beside it."""
    is_size = path.endswith("_bytes") and isinstance(value, int | str) and str(value).isdecimal()
    return f"{value} ({size_text(int(str(value)))})" if is_size and int(str(value)) >= 1024 else value


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
