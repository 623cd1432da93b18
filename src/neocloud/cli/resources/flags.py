"""Flags derived from the fields of a message, and requests built from the flags.

Scalars, enums and lists of scalars are flags of their own, nested messages are flattened with a hyphen
(`--login-port`), maps are NAME=VALUE, and deeper messages are given as JSON. For a list of objects the first
field is enough: `--cidr 10.1.0.0/24` is `{"cidr": "10.1.0.0/24"}`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
import yaml
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neocloud.cli.output import JsonObject
from neocloud.cli.resources.flag_texts import text_of
from neocloud.cli.resources.noun import kebab
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.json_values import as_list, is_list, is_object

DEEPEST_FLAG = 3
TEXT_TYPES = {
    "google.protobuf.Timestamp": "A time such as 2026-12-31T00:00:00Z",
    "google.protobuf.Duration": "3600s",
}


@dataclass(frozen=True)
class Flag:
    """One option of a command and the field it fills."""

    path: tuple[str, ...]
    """Field names from the top of the request: ("spec", "size_gibibytes")."""
    option: str
    annotation: object
    help: str
    is_json: bool = False
    is_map: bool = False
    first_fields: tuple[tuple[str, bool], ...] = ()
    """For a list of objects: the path to the first plain field, each step with whether it is a list."""

    is_number: bool = False
    """Whether that first field is a whole number."""

    @property
    def parameter(self) -> str:
        return "__".join(self.path)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; () for other fields."""
        return next((get_args(each) for each in get_args(self.annotation) if get_origin(each) is Literal), ())

    def value_of(self, given: object) -> object:
        if self.is_map:
            return dict(_pair(str(item), self.option) for item in as_list(given))
        if self.is_json and is_list(given):
            return [item for text in given for item in self._items(str(text))]
        if self.is_json:
            return _parsed(str(given), self.option)
        if is_list(given):  # of an enum, perhaps
            return [str(item) if isinstance(item, StrEnum) else item for item in given]
        return given

    def _items(self, text: str) -> list[object]:
        if self.first_fields and not text.lstrip().startswith(("[", "{")):
            value: object = _number(text, self.option) if self.is_number else text
            for name, is_repeated in reversed(self.first_fields):
                value = {name: [value] if is_repeated else value}
            return [value]
        parsed = _parsed(text, self.option)
        return parsed if is_list(parsed) else [parsed]


def flags_of(descriptor: Descriptor, path: tuple[str, ...] = (), prefix: str = "") -> list[Flag]:
    """Return the flags that fill a message, without output-only fields; `spec` adds no prefix."""
    found: list[Flag] = []
    for field in descriptor.fields:
        if contract.annotations(field).is_output_only:
            continue
        here = (*path, field.name)
        option = f"--{prefix}{kebab(field.name).replace('_', '-')}"
        if field.message_type is not None and _is_nested(field) and len(here) <= DEEPEST_FLAG:
            inner = "" if here == ("spec",) else f"{option.removeprefix('--')}-"
            found += flags_of(field.message_type, here, inner)
        else:
            found.append(_flag(field, here, option))
    return found


def fill(request: JsonObject, flags: Iterable[Flag], given: Mapping[str, object]) -> list[str]:
    """Put the given values into the request and return the paths of their fields."""
    paths: list[str] = []
    for flag in flags:
        value = given.get(flag.parameter)
        if value is None or value == []:
            continue
        target = request
        for part in flag.path[:-1]:
            target = target.setdefault(part, {})
        target[flag.path[-1]] = flag.value_of(value)
        paths.append(".".join(flag.path))
    return paths


def option(flag: Flag, *shortcuts: str, hidden: bool = False) -> Any:
    """Return the annotation that Typer reads; a boolean gets `--no-`, because false is a value too."""
    is_switch = flag.annotation == bool | None
    words = f"{flag.option}/--no-{flag.option.removeprefix('--')}" if is_switch else flag.option
    return Annotated[
        flag.annotation, typer.Option(words, *shortcuts, help=flag.help, show_default=False, hidden=hidden)
    ]


def _flag(field: FieldDescriptor, path: tuple[str, ...], name: str) -> Flag:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return Flag(path, name, list[str] | None, "NAME=VALUE; repeatable.", is_map=True)
    if field.message_type is not None and field.message_type.full_name in TEXT_TYPES:
        return Flag(path, name, str | None, f"{TEXT_TYPES[field.message_type.full_name]}.")
    if field.message_type is not None and field.is_repeated:
        way = tuple(_first_fields(field.message_type))
        words = f"{_shape(field)} as JSON{f', or just the {way[-1][0]}' if way else ''}; repeatable."
        is_number = bool(way) and _innermost(field.message_type).cpp_type != FieldDescriptor.CPPTYPE_STRING
        return Flag(path, name, list[str] | None, words, is_json=True, first_fields=way, is_number=is_number)
    if field.message_type is not None:
        return Flag(path, name, str | None, f"{_shape(field)} as JSON.", is_json=True)
    if field.enum_type is not None:
        names = tuple(value.name for value in field.enum_type.values if value.number != 0)
        if field.is_repeated:  # Typer takes lists of an Enum alone
            kind = StrEnum(field.enum_type.name, {each: each for each in names})
            return Flag(path, name, list[kind] | None, f"{text_of(path)} Repeatable.")
        return Flag(path, name, _many(field, Literal[names]), _text(field, path))
    kinds: Mapping[int, type] = {
        field.CPPTYPE_BOOL: bool,
        field.CPPTYPE_STRING: str,
        field.CPPTYPE_DOUBLE: float,
        field.CPPTYPE_FLOAT: float,
    }
    kind = kinds.get(field.cpp_type, int)
    return Flag(path, name, _many(field, kind), _text(field, path))


def _text(field: FieldDescriptor, path: tuple[str, ...]) -> str:
    return f"{text_of(path)} {_alternatives(field)}".rstrip()


def _alternatives(field: FieldDescriptor) -> str:
    """Return the help text of a oneof's member, which excludes the others."""
    group = field.containing_oneof
    if group is None or len(group.fields) < 2:
        return ""
    others = [kebab(other.name).replace("_", "-") for other in group.fields if other.name != field.name]
    return f"Instead of {', '.join(f'--{name}' for name in others)}."


def _many(field: FieldDescriptor, kind: Any) -> object:
    return list[kind] | None if field.is_repeated else kind | None


def _is_nested(field: FieldDescriptor) -> bool:
    return (
        field.message_type is not None
        and not field.is_repeated
        and field.message_type.full_name not in TEXT_TYPES
    )


def _first_fields(descriptor: Descriptor) -> Iterable[tuple[str, bool]]:
    """Follow the first fields down to a string field; nothing if there is none."""
    first = descriptor.fields[0]
    if first.message_type is None:
        is_plain = first.cpp_type in (first.CPPTYPE_STRING, first.CPPTYPE_INT32, first.CPPTYPE_INT64)
        return [(first.name, first.is_repeated)] if is_plain else []
    rest = list(_first_fields(first.message_type)) if first.is_repeated else []
    return [(first.name, True), *rest] if rest else []


def _innermost(descriptor: Descriptor) -> FieldDescriptor:
    """Return the plain field to which the first fields lead."""
    first = descriptor.fields[0]
    return first if first.message_type is None else _innermost(first.message_type)


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        step = "Write a number such as 8000, or the object as JSON"
        raise ClientError("INVALID_ARGUMENT", f"{name}: {text!r} is not a whole number", step) from error


def _shape(field: FieldDescriptor) -> str:
    names = ", ".join(inner.name for inner in field.message_type.fields[:4]) if field.message_type else ""
    return f"{'List of objects' if field.is_repeated else 'An object'} ({names})"


def _pair(item: str, name: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise ClientError("INVALID_ARGUMENT", f"{item!r} is not NAME=VALUE", f"For example {name} team=risk")
    return key, value


def _parsed(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{name} is not valid JSON: {error}", "Quote it for the shell with '...'"
        ) from error


def read_manifest(text: str, where: str) -> JsonObject:
    """Parse a resource in YAML or JSON, in the form that `--output yaml` prints."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{where} is not valid YAML: {error}", "Correct it and try again"
        ) from error
    if not is_object(document):
        raise ClientError(
            "INVALID_ARGUMENT", f"{where} contains no resource", "It needs `metadata` and `spec`"
        )
    return document


def paths_in(document: object, prefix: Sequence[str] = ()) -> list[str]:
    """Return the paths of all values in a manifest; a list is one value."""
    if is_object(document) and document:
        return [path for key, value in document.items() for path in paths_in(value, (*prefix, str(key)))]
    return [".".join(prefix)]
