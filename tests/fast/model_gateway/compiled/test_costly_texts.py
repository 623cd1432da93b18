"""Texts that pass bounds by size and repetition, and that the real compiler showed to be costly (decision
0094).
"""

import json

import pytest

from tests.fast.model_gateway.compiled.test_bounds import (
    Fields,
    asked,
    outputs,
    refused,
    schema_of,
    tool,
    weight_of,
)


@pytest.mark.parametrize(
    "grammar",
    [
        *(
            "start: start",
            "start: start?",
            "start: a*\na: start~2",
            "start: [a]\na: (start)",
            "?start: a+\na.2: start",
        ),
        'start: ""i a? // loops\na: start~1..2',
        'start: "x"\na: a~2\n%ignore " "',
        'start[max_tokens=5]: start? -> again\n  | "x"',
        'start: "x" a: a? b: "y"',
        *(
            "root ::= root",
            "root ::= root{1,3}",
            'root ::= ("" root{2} ""+) | "x"',
            "root ::= a # b\na ::= [x] | root?",
        ),
        'root ::= "x" a ::= ("") a{2}',
    ],
)
def test_a_rule_that_may_stand_for_itself_alone_is_refused(grammar: str) -> None:
    """`start: start?` ends an engine: xgrammar follows it until its stack is full."""
    error = refused(outputs(grammar=grammar))
    assert error.param == "structured_outputs.grammar" and "nothing but itself" in error.message
    tag = {"type": "structural_tag", "format": {"type": "grammar", "grammar": grammar}}
    assert refused({"response_format": tag}).param == "response_format.format.grammar"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: start "+" term | term\nterm: /[0-9]+/ | "(" start ")"',
        'start: [a] "x"\na: start?',
        '?start: value\n?value: list | /a/ -> word\nlist: "[" [value ("," value)*] "]"\n%ignore /[ ]+/',
        'root ::= "x" root | ""\nws ::= [ \\n\\t]* # root ::= root',
        'root ::= "root ::= root" [root]{2} | a\na ::= b b\nb ::= "y" | "(" root ")"',
    ],
)
def test_a_rule_that_leads_to_itself_with_something_beside_it_passes(grammar: str) -> None:
    asked(outputs(grammar=grammar))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (schema_of({"enum": ["x" * 9_000, "y"]}), "a text of more than 8,192 characters"),
        (schema_of({"const": {"a": ["x" * 9_000]}}), "a text of more than 8,192 characters"),
        (schema_of({"properties": {"x" * 9_000: {}}}), "a text of more than 8,192 characters"),
        (outputs(choice=["x" * 9_000]), "a text of more than 8,192 characters"),
        (outputs(grammar=f'root ::= "{"x" * 9_000}"'), "a text of more than 8,192 characters"),
        (
            outputs(structural_tag=json.dumps({"triggers": ["x" * 9_000]})),
            "a text of more than 8,192 characters",
        ),
        (
            schema_of({"properties": {f"p{n}": {} for n in range(101)}, "maxProperties": 9}),
            "more than 100 entries beside minProperties or maxProperties",
        ),
        (
            schema_of({"anyOf": [{"properties": {f"p{n}": {} for n in range(90)}, "minProperties": 9}] * 20}),
            "repeats too much",
        ),
        (schema_of({"anyOf": [{"minLength": n, "maxLength": n} for n in range(70, 99)]}), "exact lengths"),
        (
            outputs(regex="|".join(f"[a-{end}]{{1,99}}" for end in "bcdefghijklmnopqrstuvw")),
            "classes of letters",
        ),
        (schema_of({"anyOf": [{"format": "uri"}] * 490 + [{"maxLength": 99}] * 3}), ""),
        (schema_of({"properties": {f"p{n}": {"format": "uri"} for n in range(510)}}), "repeats too much"),
        (outputs(grammar="start: ((A~1..100)~1..100)~1..100\nA: /[^a]/"), "repeats too much"),
    ],
)
def test_what_the_real_compiler_takes_long_for_is_refused(fields: Fields, found: str) -> None:
    if found:
        assert found in refused(fields).message
    else:
        assert weight_of(fields) > 9_000


def test_long_texts_that_are_only_shown_pass() -> None:
    shown = {"description": "x" * 20_000, "title": "x" * 9_000, "default": "x" * 9_000}
    asked(schema_of({"type": "object", "properties": {"a": {"type": "string", **shown}}}))
    asked({"tools": [tool({}, description="x" * 20_000)], "tool_choice": "required"})
