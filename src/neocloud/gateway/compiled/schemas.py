# pyright: strict
"""Bound what a JSON schema makes the model server compile, and refuse one that only refers to itself.

All is walked that is not data (`enum`, `const`, `default`, `examples`), whatever lies around it, so that the
formats of structural tags and tools are read in the same way. Engines follow a `$ref` into data, too: where
there is one, data are walked as well.
"""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.gateway.api.errors import bad_request
from neocloud.gateway.compiled.expressions import WIDE, Cost, too_costly
from neocloud.gateway.compiled.grammars import add_grammar

MAX_PROPERTIES = 1_000
"""Of one object: the work grows with their square where they are optional."""
PROPERTIES_OF_WEIGHT = 1_000
"""Their square, divided by this, weighs one: 400 optional ones of any type take some 1.6 s."""
LONGEST_COUNTED = 100
"""A length limit of a string costs no more than this one: tokens are not longer."""
_DATA = frozenset(("enum", "const", "default", "examples", "example"))
_MAPS = (".properties", ".patternProperties", ".$defs", ".definitions", ".dependentSchemas")
"""Places of objects whose keys are names that callers choose."""
_EXPRESSIONS = ("pattern", "regex")
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
        properties = len(_keys(node.get("properties")))
        cost.beside += properties * properties // PROPERTIES_OF_WEIGHT
        if properties > MAX_PROPERTIES:
            raise too_costly(f"{place}.properties", f"has more than {MAX_PROPERTIES:,} entries")
        branches = (node.get(name) for name in _LISTS)
        cost.add(0, sum(len(each) for each in branches if isinstance(each, list)), place)
        limits = _length_limits(node)
        if any(limits) and limits not in cost.lengths:
            cost.lengths.add(limits)
            cost.add(WIDE + min(max(limits), LONGEST_COUNTED), 0, place)


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
