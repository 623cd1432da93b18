"""Messages as JSON and back, by protobuf's JSON mapping, in the contract's own pool.

Unknown fields are refused: a misspelt field that is silently dropped is worse than an error.
"""

import json
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from neocloud.core.contract.errors import bad_request
from neocloud.core.contract.registry import pool


def to_dict(value: Any, *, proto_names: bool = True) -> dict[str, Any]:
    return json_format.MessageToDict(value, preserving_proto_field_name=proto_names, descriptor_pool=pool())


def to_json(value: Any, *, indent: int | None = None, proto_names: bool = True) -> str:
    return json.dumps(to_dict(value, proto_names=proto_names), indent=indent, ensure_ascii=False)


def from_dict(message_class: Any, content: dict[str, Any]) -> Any:
    try:
        return json_format.ParseDict(content, message_class(), descriptor_pool=pool())
    except json_format.ParseError as error:
        raise _refusal(message_class, str(error)) from None


def from_json(
    message_class: Any, text: str | bytes, *, check: Callable[[Any], None] = lambda content: None
) -> Any:
    """Raises ApiError (INVALID_ARGUMENT) when the text is no JSON object of this message. `check` sees the
    content before a message is made of it, which takes far longer than parsing, and may raise."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise _refusal(message_class, str(error)) from None
    if not isinstance(content, dict):
        raise _refusal(message_class, f"a JSON {type(content).__name__} was given")
    check(content)
    return from_dict(message_class, content)


def _refusal(message_class: Any, reason: str) -> Exception:
    name = message_class.DESCRIPTOR.full_name
    reason = reason.rstrip(".")
    return bad_request(
        [], f"The body is not a JSON object of {name}: {reason}. Correct it and send it again."
    )
