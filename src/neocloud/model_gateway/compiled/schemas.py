"""Bound what a JSON schema makes the model server compile, and refuse one that only refers to itself.

All is walked that is not data (`enum`, `const`, `default`, `examples`), whatever lies around it, so that the
formats of structural tags and tools are read in the same way. Engines follow a `$ref` into data, too: where
there is one, data are walked as well.
"""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.compiled.expressions import WIDE, Cost, too_costly
from neocloud.model_gateway.compiled.grammars import add_grammar

MAX_PROPERTIES = 1_000
"""Properties of one object: the work grows with their square where they are optional."""
PROPERTIES_OF_WEIGHT = 1_000
"""Their square, divided by this, weighs one: 400 optional ones of any type take some 1.6 s."""
LONGEST_COUNTED = 100
"""A length limit of a string costs no more than this one: tokens are not longer."""
WEIGHT_OF_LENGTHS = 300
"""Weight of the first length limit: each token of a vocabulary is compared with it."""
WEIGHT_OF_FORMAT = 20
MAX_COUNTED_PROPERTIES = 100
"""Properties of an object that says how many it must or may have: the states grow with their square, the time
faster.
"""
COUNTED_OF_WEIGHT = 1_000
"""The cube of their number, divided by this, weighs one."""
_DATA = frozenset(("enum", "const", "default", "examples", "example"))
_MAPS = (".properties", ".patternProperties", ".$defs", ".definitions", ".dependentSchemas")
"""Places of objects whose keys are names that callers choose."""
_EXPRESSIONS = ("pattern", "regex")
_COUNTS = ("minProperties", "maxProperties")
_NOT_COMPILED = frozenset(
    (
        *("$comment", "$id", "$ref", "$schema", "description", "title", "type"),
        *("default", "examples", "example", "grammar", *_EXPRESSIONS),
    )
)
"""Their texts are shown to the model at most, or have bounds of their own."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "elements", "tags")


def add_schema(schema: Json, param: str, cost: Cost) -> None:
    """Raises OpenAiError 400 that names the field."""
    for node, place in _objects(schema, param):
        for name in _EXPRESSIONS:
            text = node.get(name)
            if isinstance(text, str):
                cost.add_expression(text, f"{place}.{name}")
        grammar = node.get("grammar")
        if isinstance(grammar, str):
            add_grammar(grammar, f"{place}.grammar", cost)
        for text in _keys(node.get("patternProperties")):
            cost.add_expression(text, f"{place}.patternProperties")
        _add_properties(node, place, cost)
        _add_literals(node, place, cost)
        branches = (node.get(name) for name in _LISTS)
        cost.add(0, sum(len(each) for each in branches if isinstance(each, list)), place)
        _add_lengths(node, place, cost)


def _add_properties(node: JsonObject, place: str, cost: Cost) -> None:
    properties = len(_keys(node.get("properties")))
    cost.beside += properties * properties // PROPERTIES_OF_WEIGHT
    if properties > MAX_PROPERTIES:
        raise too_costly(f"{place}.properties", f"has more than {MAX_PROPERTIES:,} entries")
    if not any(name in node for name in _COUNTS):
        return
    if properties > MAX_COUNTED_PROPERTIES:
        raise too_costly(
            f"{place}.properties",
            f"has more than {MAX_COUNTED_PROPERTIES} entries beside minProperties or maxProperties",
        )
    cost.add(properties**3 // COUNTED_OF_WEIGHT, 0, f"{place}.properties")


def _add_literals(node: JsonObject, place: str, cost: Cost) -> None:
    """Count the texts that stand in the answer as they are: values, and names of properties."""
    for text in _keys(node.get("properties")):
        cost.add_literal(text, f"{place}.properties")
    for name, value in node.items():
        waiting = [] if name in _NOT_COMPILED else [value]
        while waiting:
            found = waiting.pop()
            if isinstance(found, str):
                cost.add_literal(found, f"{place}.{name[:64]}")
            elif isinstance(found, list):
                waiting += found
            elif isinstance(found, dict) and name in _DATA:
                waiting += [*found, *found.values()]


def _add_lengths(node: JsonObject, place: str, cost: Cost) -> None:
    if isinstance(node.get("format"), str):
        cost.add(WEIGHT_OF_FORMAT, 0, f"{place}.format")
    limits = _length_limits(node)
    if not any(limits) or limits in cost.lengths:
        return
    cost.beside += 0 if cost.lengths else WEIGHT_OF_LENGTHS
    cost.lengths.add(limits)
    cost.add(WIDE + min(max(limits), LONGEST_COUNTED), 0, place)
    if limits[0] > 1:  # unlike upper limits, these share nothing
        cost.add_wide(min(limits[0], LONGEST_COUNTED), place)


def require_end(schema: Json, param: str) -> None:
    """Raise OpenAiError 400 where a part of the schema is defined by nothing but references to itself."""
    nodes = {id(node): (node, place) for node, place in _objects(schema, param)}
    needs: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    done: list[int] = []
    for key, (node, _) in nodes.items():
        parts, needs_all = _definition(node, schema)
        needs[key] = (len(parts) if needs_all else 1) if parts else 0
        for part in parts:
            users.setdefault(id(part), []).append(key)
        if not needs[key]:
            done.append(key)
    done += [key for key in users if key not in nodes]
    while done:
        for user in users.get(done.pop(), ()):
            needs[user] -= 1
            if not needs[user]:
                done.append(user)
    endless = next((nodes[key][1] for key, count in needs.items() if count > 0), None)
    if endless is not None:
        raise bad_request(
            f"{param} cannot be fulfilled: {endless} refers only to itself. Say what its values look like.",
            param=param,
            code="invalid_value",
        )


def _definition(node: JsonObject, root: Json) -> tuple[list[Json], bool]:
    """Return the schemas that this one stands for, and whether all of them must hold."""
    reference = node.get("$ref")
    if isinstance(reference, str):
        target = _resolve(root, reference)
        return ([target] if isinstance(target, dict) else []), True
    for name, needs_all in (("allOf", True), ("anyOf", False), ("oneOf", False)):
        parts = node.get(name)
        if isinstance(parts, list) and parts:
            if all(isinstance(each, dict) for each in parts):
                return parts, needs_all
            return [], True
    return [], True


def _resolve(root: Json, reference: str) -> Json:
    """Return what a reference within the schema names; None for any other."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = root
    for part in reference[2:].split("/") if len(reference) > 2 else ():
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(found):
            found = found[int(key[:9])]
        else:
            return None
    return found


def _objects(value: Json, place: str) -> Iterator[tuple[JsonObject, str]]:
    """Yield the objects of a schema with their places. `parse_json` bounds their depth."""
    refers_to_data = _refers_to_data(value)
    waiting: list[tuple[Json, str]] = [(value, place)]
    while waiting:
        found, where = waiting.pop()
        if isinstance(found, list):
            waiting += [(each, f"{where}[{number}]") for number, each in enumerate(found) if _is_node(each)]
        elif isinstance(found, dict):
            yield found, where
            waiting += [
                (each, f"{where}.{name[:64]}")
                for name, each in found.items()
                if _is_node(each) and (refers_to_data or name not in _DATA or where.endswith(_MAPS))
            ]


def _refers_to_data(value: Json) -> bool:
    """Return whether a reference anywhere in it leads through a key of data, however it is spelled."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += filter(_is_node, found)
        elif isinstance(found, dict):
            reference = found.get("$ref")
            if isinstance(reference, str) and not _DATA.isdisjoint(unquote(reference).split("/")):
                return True
            waiting += filter(_is_node, found.values())
    return False


def _is_node(value: Json) -> bool:
    return isinstance(value, dict | list)


def _keys(value: Json) -> list[str]:
    return list(value) if isinstance(value, Mapping) else []


def _length_limits(node: JsonObject) -> tuple[int, int]:
    least, most = (node.get(name) for name in ("minLength", "maxLength"))
    return _count(least), _count(most)


def _count(value: Json) -> int:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
