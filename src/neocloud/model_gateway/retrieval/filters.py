"""Filters on attributes of files: checked when they arrive, and applied to the attributes of one file.

A filter is data and never becomes part of a query of a database.
"""

from collections.abc import Mapping

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request

MAX_LEVELS = 8
MAX_CONDITIONS = 100
MAX_LISTED = 1000
"""Values of one `in` or `nin`."""
ORDERS = ("gt", "gte", "lt", "lte")
Attributes = Mapping[str, str | float | bool]


def check_filter(given: Json, param: str = "filters") -> JsonObject | None:
    """Return the filter, or None for none. Raises OpenAiError 400."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _wrong(param, "must be an object with a type")
    left = [MAX_CONDITIONS]
    _check(given, param, 1, left)
    return given


def _check(given: JsonObject, param: str, level: int, left: list[int]) -> None:
    if level > MAX_LEVELS:
        raise _wrong(param, f"is nested more than {MAX_LEVELS} levels deep")
    left[0] -= 1
    if left[0] < 0:
        raise _wrong(param, f"has more than {MAX_CONDITIONS} conditions")
    kind = given.get("type")
    if kind in ("and", "or"):
        inner = given.get("filters")
        if given.keys() != {"type", "filters"} or not isinstance(inner, list) or not inner:
            raise _wrong(param, f'must be {{"type": "{kind}", "filters": [...]}}')
        for each in inner:
            if not isinstance(each, dict):
                raise _wrong(param, "must have objects in filters")
            _check(each, param, level + 1, left)
        return
    if given.keys() != {"type", "key", "value"} or not isinstance(given["key"], str):
        raise _wrong(param, 'must be {"type": "eq", "key": "...", "value": ...}, or "and" or "or" of filters')
    _check_value(kind, given["value"], param)


def _check_value(kind: Json, value: Json, param: str) -> None:
    if kind in ("in", "nin"):
        if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
            raise _wrong(param, f"needs a list of strings and numbers as value of {kind}")
        if len(value) > MAX_LISTED:
            raise _wrong(param, f"has a list of more than {MAX_LISTED} values")
    elif kind in ORDERS:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _wrong(param, f"needs a number or a string as value of {kind}")
    elif kind not in ("eq", "ne"):
        raise _wrong(
            param, f"has the unknown type {str(kind)[:40]!r}. Use eq, ne, gt, gte, lt, lte, in, nin, and, or"
        )
    elif not isinstance(value, str | int | float):
        raise _wrong(param, f"needs a string, a number or a boolean as value of {kind}")


def _wrong(param: str, what: str) -> OpenAiError:
    return bad_request(f"{param} {what}.", param=param, code="invalid_value")


def matches(given: JsonObject, attributes: Attributes) -> bool:
    """Return whether a checked filter accepts these attributes. A key that a file lacks matches `ne` and
    `nin` alone."""
    kind, inner = given["type"], given.get("filters")
    if isinstance(inner, list):
        found = (matches(each, attributes) for each in inner if isinstance(each, dict))
        return all(found) if kind == "and" else any(found)
    key, value = given["key"], given["value"]
    has = attributes.get(key) if isinstance(key, str) else None
    if kind in ("ne", "nin"):
        wanted = value if isinstance(value, list) else [value]
        return not any(_equal(has, each) for each in wanted)
    if kind in ("eq", "in"):
        wanted = value if isinstance(value, list) else [value]
        return any(_equal(has, each) for each in wanted)
    return _in_order(str(kind), has, value)


def _equal(has: Json, value: Json) -> bool:
    """Compare by kind, too: true is not 1."""
    return isinstance(has, bool) == isinstance(value, bool) and has is not None and has == value


def _in_order(kind: str, has: Json, value: Json) -> bool:
    if isinstance(has, bool) or isinstance(value, bool):
        return False
    order = 0
    match has, value:
        case int() | float(), int() | float():
            order = (has > value) - (has < value)
        case str(), str():
            order = (has > value) - (has < value)
        case _:
            return False
    return {"gt": order > 0, "gte": order >= 0, "lt": order < 0, "lte": order <= 0}[kind]
