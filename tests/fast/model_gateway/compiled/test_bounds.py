"""Bounds of compilations: attacks are refused before a model server sees them, usual schemas pass."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.fields import CHAT, COMPLETIONS, RESPONSES
from neocloud.model_gateway.api.request import ModelRequest
from neocloud.model_gateway.compiled.expressions import expression_cost
from tests.fast.model_gateway.conftest import parse_request

HOSTILE = "(a.*b.*){1,50}"
INPUT = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
}
Fields = dict[str, Any]


def asked(fields: Fields, path: str = CHAT) -> ModelRequest:
    return parse_request(path, json.dumps({"model": "bank", **INPUT[path], **fields}).encode())


def refused(fields: Fields, path: str = CHAT) -> OpenAiError:
    with pytest.raises(OpenAiError) as caught:
        asked(fields, path)
    assert caught.value.status == 400
    return caught.value


def schema_of(schema: Any) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def outputs(**inner: Any) -> Fields:
    return {"structured_outputs": inner}


def text_of(schema: Any) -> Fields:
    return {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}


def tool(parameters: Any, **more: Any) -> Fields:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}, **more}


def texts(pattern: str, key: str = "a") -> Any:
    return {"type": "object", "properties": {key: {"type": "string", "pattern": pattern}}}


MANY = "|".join([HOSTILE] * 20)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (outputs(regex="|".join([HOSTILE] * 3000)), "structured_outputs.regex"),
        (outputs(regex=MANY), "structured_outputs.regex"),
        (outputs(regex="((a{100}){100}){100}"), "structured_outputs.regex"),
        (outputs(regex="((((((x*)*)*)*)*)*)*"), "structured_outputs.regex"),
        (outputs(regex="." * 4000), "structured_outputs.regex"),
        (outputs(regex=r"\w" * 2000), "structured_outputs.regex"),
        (outputs(regex="[^x]" * 1000), "structured_outputs.regex"),
        (outputs(regex="a{99999999999999999999}{99999999999999999999}"), "structured_outputs.regex"),
        (outputs(regex="|".join("abc" for _ in range(600))), "structured_outputs.regex"),
        (outputs(grammar='root ::= ((([a-z]* "x"){1,50}){1,50}){1,50}'), "structured_outputs.grammar"),
        (outputs(grammar="start: /" + HOSTILE * 20 + "/"), "structured_outputs.grammar"),
        (outputs(grammar="root ::="), "structured_outputs.grammar"),
        (outputs(grammar='root ::= a\na ::=\n\nb ::= "x"'), "structured_outputs.grammar"),
        (outputs(grammar='root ::= "x"\nb ::= # nothing'), "structured_outputs.grammar"),
        (outputs(choice=["a"] * 2001), "structured_outputs.choice"),
        (outputs(json=texts(MANY)), "structured_outputs.json.properties.a.pattern"),
        (outputs(json=json.dumps(texts(MANY))), "structured_outputs.json.properties.a.pattern"),
        (outputs(json="{"), "structured_outputs.json"),
        (
            outputs(structural_tag=json.dumps({"format": {"type": "regex", "pattern": MANY}})),
            "structured_outputs.structural_tag.format.pattern",
        ),
        (schema_of(texts(MANY)), "response_format.json_schema.schema.properties.a.pattern"),
        (schema_of(texts(MANY, "enum")), "response_format.json_schema.schema.properties.enum.pattern"),
        (
            schema_of({"patternProperties": {MANY: True}}),
            "response_format.json_schema.schema.patternProperties",
        ),
        (
            schema_of({"properties": {f"f{n}": {} for n in range(1001)}}),
            "response_format.json_schema.schema.properties",
        ),
        (
            schema_of({"anyOf": [{"const": n} for n in range(501)]}),
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "format": {"type": "grammar", "grammar": "root ::="},
                }
            },
            "response_format.format.grammar",
        ),
        ({"tools": [tool(texts(MANY))]}, "tools[0].function.parameters.properties.a.pattern"),
        (
            {"tools": [tool({}), tool(texts(MANY))], "tool_choice": "required"},
            "tools[1].function.parameters.properties.a.pattern",
        ),
        (
            {"functions": [{"name": "f", "parameters": texts(MANY)}]},
            "tools[0].parameters.properties.a.pattern",
        ),
        ({"tools": [tool({"description": "x" * 70_000})], "tool_choice": "required"}, "tools"),
        ({"tools": [tool({"description": "x" * 70_000}, strict=True)]}, "tools"),
        ({"tools": [tool({"description": "x" * 300_000})]}, "tools"),
    ],
)
def test_an_attack_is_refused_with_the_name_of_the_field(fields: Fields, param: str) -> None:
    assert refused(fields).param == param


def weight_of(fields: Fields) -> int:
    compiled = asked(fields).compiled
    assert compiled is not None
    return compiled.weight


def test_what_no_bound_counts_makes_a_turn_longer() -> None:
    assert weight_of(schema_of({"enum": [f"{n:050}" for n in range(1000)]})) > 100
    assert weight_of(outputs(choice=[f"{n:030}" for n in range(1900)])) > 100
    wide = {"type": "object", "properties": {f"{n:x}": {} for n in range(1000)}}
    assert weight_of(schema_of({"anyOf": [wide, wide, wide]})) > 3000
    assert weight_of(schema_of(PERSON)) < 600


TEXT = {"type": "string", "pattern": MANY}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/default", "default": TEXT},
        {"$ref": "#/%64efault", "default": TEXT},
        {"properties": {"a": {"$ref": "#/examples/0"}}, "examples": [TEXT]},
        {"$ref": "#/const/x/y", "const": {"x": {"y": TEXT}}},
        {"$ref": "#/$defs/enum", "$defs": {"enum": TEXT}},
        {"patternProperties": {"enum": TEXT}},
    ],
)
def test_what_a_reference_leads_to_is_compiled_and_bounded(schema: Any) -> None:
    asked_ways = ((schema_of(schema), CHAT), (outputs(json=schema), CHAT), (text_of(schema), RESPONSES))
    for fields, path in asked_ways:
        assert "repeats too much" in refused(fields, path).message
    forced = {"tools": [tool(schema)], "tool_choice": "required"}
    assert "repeats too much" in refused(forced).message


def test_a_loop_through_data_is_refused() -> None:
    loop = {"$ref": "#/default", "default": {"$ref": "#/default"}}
    assert "refers only to itself" in refused(schema_of(loop)).message


@pytest.mark.parametrize(
    "inner",
    [
        {"format": {"type": "regex", "pattern": MANY}},
        {"structures": [{"begin": "<a>", "schema": TEXT, "end": "</a>"}], "triggers": ["<a>"]},
    ],
)
def test_a_part_that_its_type_does_not_name_hides_nothing(inner: Fields) -> None:
    for decoy in ({}, {"schema": {"type": "object"}}):
        fields = {"response_format": {"type": "structural_tag", "json_schema": decoy, **inner}}
        assert "repeats too much" in refused(fields).message


@pytest.mark.parametrize(
    "grammar",
    [
        f"start: %json {json.dumps(TEXT)}",
        f"start: %json // why\n{json.dumps(TEXT)}",
        'start: %regex {"substring_chars": "abab"}',
        f"start: [ /{MANY}/ ]",
        f"start: [ a [ /{MANY}/ ] ] // ::=",
        "root ::= (([a-z]* x){ 1 , 5000 }){ 1,\n5000 }",
    ],
)
def test_what_a_grammar_has_inline_is_not_overlooked(grammar: str) -> None:
    assert refused(outputs(grammar=grammar)).param == "structured_outputs.grammar"


def test_many_small_expressions_count_together() -> None:
    each = {f"f{n}": {"type": "string", "pattern": f"{HOSTILE}{n}"} for n in range(3)}
    asked(schema_of({"type": "object", "properties": each}))
    each |= {"last": {"type": "string", "pattern": f"{HOSTILE}.{{1,1500}}"}}
    refused(schema_of({"type": "object", "properties": each}))
    refused(outputs(json={"properties": each}))
    tools = [tool(texts(each[name]["pattern"])) for name in each]
    refused({"tools": tools, "tool_choice": "required"})
    asked({"tools": tools})


@pytest.mark.parametrize(
    "name", ["_backend", "_backend_was_auto", "disable_fallback", "whitespace_pattern", "x" * 99]
)
def test_only_known_inner_fields_pass(name: str) -> None:
    for path in (CHAT, COMPLETIONS, RESPONSES):
        error = refused(outputs(regex="a", **{name: "guidance"}), path)
        assert (error.param, error.code) == (f"structured_outputs.{name[:64]}", "parameter_not_allowed")


def test_names_of_tools_are_short() -> None:
    long = "f" * 129
    named = {"type": "function", "function": {"name": long, "parameters": {}}}
    for more in ({}, {"parallel_tool_calls": False}, {"tool_choice": "required"}):
        assert refused({"tools": [tool({}), named], **more}).param == "tools[1].function.name"
    flat = {"type": "function", "name": long, "parameters": {}}
    assert refused({"tools": [flat]}, RESPONSES).param == "tools[0].name"
    asked({"tools": [{"type": "function", "function": {"name": "f" * 128}}]})


def test_the_other_paths_have_the_same_bounds() -> None:
    assert refused(outputs(regex=MANY), COMPLETIONS).param == "structured_outputs.regex"
    assert refused(outputs(regex=MANY), RESPONSES).param == "structured_outputs.regex"
    assert refused(text_of(texts(MANY)), RESPONSES).param == "text.format.schema.properties.a.pattern"
    flat = {"type": "function", "name": "f", "parameters": texts(MANY)}
    assert refused({"tools": [flat]}, RESPONSES).param == "tools[0].parameters.properties.a.pattern"


SELF = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {"$defs": {"a~b": {"oneOf": [{"$ref": "#/$defs/a~0b"}]}}, "type": "object"},
    {"allOf": [{"type": "string"}, {"$ref": "#/allOf/1"}]},
]


@pytest.mark.parametrize("schema", SELF)
def test_a_schema_that_only_refers_to_itself_is_refused(schema: Any) -> None:
    assert refused(schema_of(schema)).param == "response_format.json_schema.schema"
    assert "refers only to itself" in refused(outputs(json=schema)).message
    assert refused(text_of(schema), RESPONSES).param == "text.format.schema"


TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
PERSON = {
    "$defs": {
        "Address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": r"^\d{5}$"}}}
    },
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 100},
        "email": {"type": "string", "pattern": r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$"},
        "home": {"$ref": "#/$defs/Address"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 1000},
        "pattern": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    "fields",
    [
        schema_of(TREE),
        schema_of(PERSON),
        schema_of({"anyOf": [{"$ref": "#"}, {"type": "string"}]}),
        schema_of({"enum": [f"value {n}" for n in range(2000)]}),
        schema_of({"type": "object", "properties": {f"f{n}": {"maxLength": 50} for n in range(300)}}),
        schema_of({"enum": [{"pattern": MANY}], "default": {"$ref": "#"}}),
        schema_of(True),
        outputs(regex=r"^.{1,9000}$"),
        outputs(regex=r"(\w+\s*){1,100}"),
        outputs(regex=r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z"),
        outputs(regex="|".join(f"word{n}" for n in range(400))),
        outputs(choice=[f"choice {n}" for n in range(2000)]),
        outputs(grammar='root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]{1,20} | "(" expr ")"\n'),
        outputs(grammar='root ::=\n  "a" # one\n  | b\nb ::= "::="'),
        outputs(json_object=True, disable_any_whitespace=True),
        {"tools": [tool(PERSON)] * 100},
        {"tools": [tool(TREE)], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_usual_schemas_pass_unchanged(fields: Fields) -> None:
    sent = json.loads(asked(fields).for_model_server("bank"))
    assert {name: sent[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "is_compiled"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"tools": [tool(PERSON)]}, False),
        ({"tools": [tool(PERSON)], "tool_choice": "auto"}, False),
        ({"tools": [tool(PERSON)], "tool_choice": "required"}, True),
        ({"tools": [tool(PERSON)], "tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"tools": [tool(PERSON, strict=True)]}, True),
        ({"response_format": {"type": "json_object"}}, True),
        (schema_of(PERSON), True),
        (outputs(choice=["a"]), True),
    ],
)
def test_what_is_compiled_waits_for_a_turn(fields: Fields, is_compiled: bool) -> None:
    assert (asked(fields).compiled is not None) == is_compiled


def test_the_same_schema_has_the_same_digest() -> None:
    def digest(fields: Fields) -> bytes:
        compiled = asked(fields).compiled
        assert compiled is not None
        return compiled.digest

    assert digest(schema_of({"a": 1, "b": 2})) == digest({**schema_of({"b": 2, "a": 1}), "seed": 7})
    assert digest(schema_of({"a": 1})) != digest(schema_of({"a": 2}))


@pytest.mark.parametrize(
    "text", ["(" * 4096, "(((a" * 1000 + "){9}" * 24, "[" * 4096, "{1}" * 1300, "\\" * 4095]
)
def test_strange_expressions_take_no_time(text: str) -> None:
    started = time.process_time()
    expression_cost(text)
    assert time.process_time() - started < 0.5


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.text("ab.*+?|{}[]\\^-,019wWé", max_size=60), st.integers(2, 9))
def test_a_repeated_group_weighs_as_often_as_it_is_repeated(text: str, times: int) -> None:
    weight = expression_cost(text).weight
    assert weight >= 0
    if "[" not in text and "\\" not in text and expression_cost(f"({text})").weight == weight:
        assert expression_cost(f"({text}){{{times}}}").weight >= min(times * weight, 10**9)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["$ref", "$defs", "allOf", "anyOf", "pattern", "properties", "enum", "maxLength", "x"]
                ),
                inner | st.sampled_from(["#", "#/$defs/x", "#/allOf/0", "#/%zz/~2", MANY]),
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_any_schema_is_taken_or_refused_with_a_field(schema: Any) -> None:
    for fields, path in (
        (schema_of(schema), CHAT),
        (outputs(json=schema), COMPLETIONS),
        (text_of(schema), RESPONSES),
    ):
        try:
            asked(fields, path)
        except OpenAiError as error:
            assert error.status == 400
            assert error.param
