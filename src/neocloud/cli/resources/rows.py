"""Tables of resources, derived from their descriptors."""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neocloud.cli.output import View, table
from neocloud.cli.resources.pages import cells, label_of, text_of
from neocloud.core import contract

SPEC_COLUMNS = 3
ANSWER_COLUMNS = 6
SINGLE_ADDRESS = "/32"


def list_table(descriptor: Descriptor, items: Iterable[Any], columns: Sequence[tuple[str, str]] = ()) -> View:
    """Return a row per resource: name, state, the given columns, id. For items that are not resources: only
    the given columns, or else their first values.

    A column is a header and the path of a field. By default they are the first plain spec fields in use.
    """
    items = list(items)
    columns = [(header, path) for header, path in columns if path.split(".")[0] in descriptor.fields_by_name]
    if "metadata" not in descriptor.fields_by_name and columns:
        rows = ([text_at(item, path) for _, path in columns] for item in items)
        return table([header for header, _ in columns], rows)
    if "metadata" not in descriptor.fields_by_name:
        return _table_of_answers(items)
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


def _table_of_answers(items: Sequence[Any]) -> View:
    """Return a row per item with the first of its values; what no item has is left out."""
    found = [cells(item) for item in items]
    labels = list(dict.fromkeys(label for values in found for label in values))[:ANSWER_COLUMNS]
    return table(
        [label.upper() for label in labels], ([each.get(label) for label in labels] for each in found)
    )


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
    objects, texts = [item], []
    for name in path.split("."):
        found = [(each.DESCRIPTOR.fields_by_name[name], getattr(each, name)) for each in objects]
        values = [
            (field, inner) for field, value in found for inner in (value if field.is_repeated else [value])
        ]
        objects = [value for _, value in values]
        texts = [text_of(field, value) for field, value in values if value not in (0, "")]
    return ", ".join(text.removesuffix(SINGLE_ADDRESS) for text in texts)


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
    return "" if value in (0, "") else text_of(field, value)


def _state_field(descriptor: Descriptor) -> FieldDescriptor | None:
    status = descriptor.fields_by_name.get("status")
    state = status.message_type.fields_by_name.get("state") if status and status.message_type else None
    return state if state is not None and state.enum_type is not None else None


def _state(item: Any) -> str:
    field = _state_field(item.DESCRIPTOR)
    assert field is not None and field.enum_type is not None, "a list of them has no states"
    return field.enum_type.values_by_number[item.status.state].name


def _title(field: FieldDescriptor) -> str:
    return (field.name.replace("_", " ") if field.name.endswith("_id") else label_of(field.name)).upper()
