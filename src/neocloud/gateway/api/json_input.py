"""Parse JSON of callers, with limits on its depth and number of values.

All JSON of tenants is read by `loads`. Values are counted in the bytes before anything is built from them:
ten million empty lists are 30 MB of text and a gigabyte of memory.
"""

import re
from typing import Any

import orjson

MAX_DEPTH = 64
"""Levels of lists and objects. JSON schemas of tools, the deepest that clients send, have some twenty."""
MAX_VALUES = 500_000
"""Values of one body or line: a body of 128 prompts of 3,900 token numbers each."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


class InvalidJson(ValueError):
    """The message says what is wrong, as the end of a sentence that names the text."""

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"{reason} at line {line}, column {column}" if line else reason)
        self.of_line = f"{reason} at column {column}" if line else reason
        """The message where the text is a line of a file."""


def loads(raw: bytes | bytearray) -> Any:
    """Return the value of a JSON text. Raises InvalidJson."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened + raw.count(b",") > MAX_VALUES:
        _require_few_values(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"is not valid JSON: {error.msg}", error.lineno, error.colno) from None
    if opened > MAX_DEPTH:
        _require_flat(value)
    return value


def _require_few_values(raw: bytes | bytearray) -> None:
    """Count again, ignoring the contents of strings."""
    bare = _STRING.sub(b"", raw)
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") > MAX_VALUES:
        raise InvalidJson(f"has more than {MAX_VALUES} values")


def _require_flat(value: Any) -> None:
    """Check level by level, since deep texts would exhaust Python's stack."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [child for child in each.values() if isinstance(child, dict | list)]
            elif isinstance(each, list):
                below += [child for child in each if isinstance(child, dict | list)]
        if not below:
            return
        level = below
    raise InvalidJson(f"is nested more than {MAX_DEPTH} levels deep")
