"""Messages as JSON and back, by protobuf's JSON mapping, in the contract's own pool.

Unknown fields are refused: a misspelt field that is silently dropped is worse than an error.

Parsed input is `Json`, an object of it `JsonObject`. Output that is only encoded is a `Mapping[str, object]`.
"""

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from neocloud.core.contract.errors import bad_request
from neocloud.core.contract.registry import Field, MessageType, pool
from neocloud.core.json_values import is_object

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
JsonObject: TypeAlias = dict[str, Json]


M = TypeVar("M", bound=Message)
_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class Int64(str):
    """A 64-bit integer in a document: a string in JSON, as in protobuf's mapping, and a number in YAML."""


def to_dict(value: Message, *, proto_names: bool = True) -> dict[str, Any]:
    return json_format.MessageToDict(value, preserving_proto_field_name=proto_names, descriptor_pool=pool())


def to_document(value: Message) -> dict[str, Any]:
    """Return what `to_dict` returns, with 64-bit integers as `Int64`."""
    return _with_numbers(to_dict(value), value.DESCRIPTOR)


def _with_numbers(content: JsonObject, descriptor: MessageType) -> JsonObject:
    if "@type" in content:  # a packed message has the fields of the message in it
        descriptor = pool().FindMessageTypeByName(str(content["@type"]).rpartition("/")[2])
    fields = descriptor.fields_by_name
    return {
        name: _numbered(value, fields[name]) if name in fields else value for name, value in content.items()
    }


def _numbered(value: Json, field: Field) -> Json:
    inside = field.message_type
    if isinstance(value, list):
        return [_numbered(each, field) for each in value]
    if inside is None:
        return Int64(value) if isinstance(value, str) and field.cpp_type in _LONG else value
    if not isinstance(value, dict):  # such as a Timestamp, which is a string
        return value
    if not inside.GetOptions().map_entry:
        return _with_numbers(value, inside)
    of_values = inside.fields_by_name["value"]
    return {key: _numbered(each, of_values) for key, each in value.items()}


def to_json(value: Message, *, indent: int | None = None, proto_names: bool = True) -> str:
    return json.dumps(to_dict(value, proto_names=proto_names), indent=indent, ensure_ascii=False)


def from_dict(message_class: type[M], content: dict[str, Any]) -> M:
    try:
        return json_format.ParseDict(content, message_class(), descriptor_pool=pool())
    except json_format.ParseError as error:
        raise _refusal(message_class, str(error)) from None


def from_json(
    message_class: type[M], text: str | bytes, *, check: Callable[[object], None] = lambda content: None
) -> M:
    """Return the message. Raise ApiError (INVALID_ARGUMENT) when the text is not a JSON object of this type.

    `check` gets the parsed content, and may raise, before a message is made of it, which takes far longer
    than parsing."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise _refusal(message_class, str(error)) from None
    if not is_object(content):
        raise _refusal(message_class, f"a JSON {type(content).__name__} was given")
    check(content)
    return from_dict(message_class, content)


def _refusal(message_class: type[Message], reason: str) -> Exception:
    name = message_class.DESCRIPTOR.full_name
    reason = reason.rstrip(".")
    return bad_request(
        [], f"The body is not a JSON object of {name}: {reason}. Correct it and send it again."
    )
