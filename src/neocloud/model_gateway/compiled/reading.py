"""Find all that the model server compiles for a request, live or of a batch, and refuse what is too much."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from neocloud.core.contract.json_codec import Json, JsonObject
from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.api.fields import InvalidJson, parse_json
from neocloud.model_gateway.compiled.expressions import Cost, too_costly
from neocloud.model_gateway.compiled.grammars import add_grammar
from neocloud.model_gateway.compiled.schemas import add_schema, require_end

MAX_SCHEMA_BYTES = 64 * 1024
"""Limit of each field that is compiled, and of all schemas of tools where they are compiled."""
LONGEST_TOOL_NAME = 128
"""Twice what OpenAI takes."""
MAX_TOOLS_BYTES = 256 * 1024
"""Limit of the tools of a request whose schemas are only shown to the model."""
MAX_CHOICES = 2_000
BYTES_OF_WEIGHT = 500
"""So much text of values and names weighs one: 50 kB of values to choose from take a second."""
INNER_FIELDS = (
    *("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    *("disable_any_whitespace", "disable_additional_properties"),
)
"""Fields that callers may set in `structured_outputs`."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The part of a request that the model server compiles."""

    param: str
    """The field that holds it, for messages."""
    digest: bytes
    weight: int


def read_compiled(body: Mapping[str, Json]) -> Compiled | None:
    """Return what is compiled, None where nothing is. Raises OpenAiError 400 that names the field."""
    cost = Cost()
    found: dict[str, Json] = {}
    for name, add in (("response_format", _add_format), ("text", _add_text)):
        value = body.get(name)
        if isinstance(value, dict) and add(value, cost):
            found[name] = value
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        _add_structured_outputs(outputs, cost)
        found["structured_outputs"] = outputs
    tools = _tools(body)
    if tools:
        _add_tools(body, tools, cost)
        if _are_tools_compiled(body, tools):
            found["tools"] = [tools, body.get("tool_choice")]
    if not found:
        return None
    data = orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
    weight = cost.weight + cost.beside + len(data) // BYTES_OF_WEIGHT
    return Compiled(next(iter(found)), blake2b(data, digest_size=16).digest(), weight)


def _require_size(value: Json, param: str, most: int = MAX_SCHEMA_BYTES) -> None:
    if len(orjson.dumps(value)) > most:
        raise bad_request(
            f"{param} is larger than {most} bytes. Use a smaller schema.", param=param, code="invalid_value"
        )


def _add_format(value: JsonObject, cost: Cost) -> bool:
    """Bound a `response_format`; return whether it is compiled."""
    _require_size(value, "response_format")
    add_schema(value, "response_format", cost)  # all of it: its type may name another part than json_schema
    schema = value.get("json_schema")
    if isinstance(schema, dict):
        require_end(schema.get("schema"), "response_format.json_schema.schema")
    return value.get("type") not in (None, "text")


def _add_text(value: JsonObject, cost: Cost) -> bool:
    """Bound `text` of /v1/responses."""
    _require_size(value, "text")
    add_schema(value, "text", cost)
    inner = value.get("format")
    if not isinstance(inner, dict):
        return False
    require_end(inner.get("schema"), "text.format.schema")
    return inner.get("type") not in (None, "text")


def _add_whole_schema(schema: Json, param: str, cost: Cost) -> None:
    add_schema(schema, param, cost)
    require_end(schema, param)


def _add_structured_outputs(value: JsonObject, cost: Cost) -> None:
    param = "structured_outputs"
    _require_size(value, param)
    unknown = next((name for name in value if name not in INNER_FIELDS), None)
    if unknown is not None:
        name = f"{param}.{unknown[:64]}"
        known = ", ".join(INNER_FIELDS)
        raise bad_request(
            f"{name} cannot be set by callers. Remove it; the fields are {known}.",
            param=name,
            code="parameter_not_allowed",
        )
    regex, grammar = value.get("regex"), value.get("grammar")
    if isinstance(regex, str):
        cost.add_expression(regex, f"{param}.regex")
    if isinstance(grammar, str):
        add_grammar(grammar, f"{param}.grammar", cost)
    choices = value.get("choice")
    if isinstance(choices, list) and len(choices) > MAX_CHOICES:
        raise too_costly(f"{param}.choice", f"has more than {MAX_CHOICES:,} entries")
    for each in choices if isinstance(choices, list) else ():
        cost.add_literal(each if isinstance(each, str) else "", f"{param}.choice")
    _add_whole_schema(_parsed(value.get("json"), f"{param}.json"), f"{param}.json", cost)
    add_schema(
        _parsed(value.get("structural_tag"), f"{param}.structural_tag"), f"{param}.structural_tag", cost
    )


def _parsed(value: Json, param: str) -> Json:
    """Return a schema that may be given as a text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except (InvalidJson, UnicodeEncodeError) as error:
        raise bad_request(f"{param} {error}.", param=param, code="invalid_value") from None


def _tools(body: Mapping[str, Json]) -> list[Json]:
    """Return the tools, and the functions of the older field."""
    given = (body.get(name) for name in ("tools", "functions"))
    return [tool for each in given if isinstance(each, list) for tool in each]


def _add_tools(body: Mapping[str, Json], tools: list[Json], cost: Cost) -> None:
    is_compiled = _are_tools_compiled(body, tools)
    _require_size(tools, "tools", MAX_SCHEMA_BYTES if is_compiled else MAX_TOOLS_BYTES)
    for number, tool in enumerate(tools):
        _require_short_name(tool, f"tools[{number}]")
        add_schema(tool, f"tools[{number}]", cost if is_compiled else Cost())


def _require_short_name(tool: Json, param: str) -> None:
    """Model servers may compile names of tools whose schemas they only show, as with one call at a time."""
    while isinstance(tool, dict):
        name = tool.get("name")
        if isinstance(name, str) and len(name) > LONGEST_TOOL_NAME:
            found = f"{param}.name is longer than {LONGEST_TOOL_NAME} characters. Shorten it."
            raise bad_request(found, param=f"{param}.name", code="invalid_value")
        tool, param = tool.get("function"), f"{param}.function"


def _are_tools_compiled(body: Mapping[str, Json], tools: list[Json]) -> bool:
    """Return whether calls must follow the schemas. Otherwise the tools are only shown to the model."""
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, dict) or any(map(_is_strict, tools))


def _is_strict(tool: Json) -> bool:
    if not isinstance(tool, dict):
        return False
    function = tool.get("function")
    return bool(tool.get("strict")) or (isinstance(function, dict) and bool(function.get("strict")))
