"""Parsed JSON, checked as it is read: its types are known only at run time."""

from collections.abc import Mapping
from typing import TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether this is a JSON object. Its keys are text, as a parser of JSON makes no others."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    """Return whether this is a mapping, as YAML has it, with keys of any type."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether this is a number, which true and false are not."""
    return type(value) in (int, float)


def as_object(value: object) -> dict[str, object]:
    """Return the JSON object; an empty one where the value is something else."""
    return value if is_object(value) else {}


def as_list(value: object) -> list[object]:
    """Return the JSON array; an empty one where the value is something else."""
    return value if is_list(value) else []
