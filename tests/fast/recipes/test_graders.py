"""Graders are data: what they score, what they refuse, and that no code of a user is run."""

from __future__ import annotations

from typing import Any

import pytest

from graders import MissingField, check_fields, check_grader, score
from recipe_errors import RecipeError

ITEM = {
    "answer": "Paris",
    "facts": {"city": "Paris", "list": ["a", "b"]},
    "call": {"name": "f", "arguments": {"x": 1}},
}
EXACT = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{ sample.output_text }}",
    "reference": "{{item.answer}}",
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORM = {"type": "json_schema", "schema": SCHEMA}


def similar(metric: str) -> dict[str, Any]:
    return {**EXACT, "type": "text_similarity", "evaluation_metric": metric} | {"name": metric}


def without(grader: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in grader.items() if name not in names}


@pytest.mark.parametrize(
    ("operation", "answer", "wanted"),
    [
        ("eq", " Paris\n", 1), ("eq", "paris", 0), ("ne", "Rome", 1), ("ne", "Paris", 0),
        ("like", "It is Paris.", 1), ("like", "paris.", 0), ("ilike", "PARIS!", 1), ("ilike", "Rome", 0),
    ],
)  # fmt: skip
def test_string_checks(operation: str, answer: str, wanted: float) -> None:
    assert score(check_grader({**EXACT, "operation": operation}), ITEM, answer) == wanted


@pytest.mark.parametrize("metric", ["fuzzy_match", "bleu", "rouge_1", "rouge_2", "rouge_l"])
def test_similarity_is_between_a_copy_and_other_words(metric: str) -> None:
    grader = check_grader(without(similar(metric), "operation"))
    item = {"answer": "You can freeze the card in the app today."}
    same, near, far = (
        score(grader, item, text)
        for text in (item["answer"], "You can freeze the card in the bank today.", "No idea at all")
    )
    assert same == pytest.approx(1.0) and 0.2 < near < 1 and far < 0.1


@pytest.mark.parametrize(
    ("answer", "wanted"), [('{"n": 1}', 1), ('{"n": "1"}', 0), ("n is 1", 0), ("[" * 100_000, 0)]
)
def test_answers_in_a_form(answer: str, wanted: float) -> None:
    assert score(check_grader(FORM), {}, answer) == wanted
    named = check_grader({"type": "json_schema", "schema": "{{item.schema}}"})
    assert score(named, {"schema": SCHEMA}, answer) == wanted


def test_nothing_is_fetched_for_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request  # noqa: PLC0415

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("fetched"))
    remote = {"type": "json_schema", "schema": {"$ref": "http://example.invalid/schema.json"}}
    assert score(check_grader(remote), {}, "{}") == 0.0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', 1.0),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', 1.0),
        ('[{"name": "f", "parameters": {"x": 1}}]', 1.0),
        ('{"name": "f", "arguments": {"x": 2}}', 0.5),
        ('{"name": "g", "arguments": {"x": 1}}', 0.0),
        ("I call f with 1", 0.0),
    ],
)
def test_calls_of_tools(answer: str, wanted: float) -> None:
    grader = check_grader({"type": "tool_call", "reference": "{{item.call}}"})
    assert score(grader, ITEM, answer) == wanted


def test_several_graders_are_combined() -> None:
    grader = check_grader(
        {
            "type": "multi",
            "graders": {"a": EXACT, "form": FORM},
            "calculate_output": "0.75 * a + 0.25 * max(form, 0)",
        }
    )
    assert score(grader, ITEM, "Paris") == 0.75 and score(grader, ITEM, '{"n": 2}') == 0.25
    half = {**grader, "calculate_output": "a / form"}
    assert score(check_grader(half), ITEM, "Paris") == 0.0, "a division by zero gives nothing"


def test_templates_hold_fields_and_no_code() -> None:
    inside = check_grader(
        {**EXACT, "input": "{{item.facts.list[1]}}{{item.facts.city}}", "reference": "bParis"}
    )
    assert score(inside, ITEM, "") == 1
    hostile = check_grader({**EXACT, "reference": "{{item.answer}}"})
    assert score(hostile, {"answer": "{{sample.output_text}}"}, "x") == 0, "a field is no template"
    as_json = check_grader({**EXACT, "input": "{{sample.output_json.city}}", "reference": "Rome"})
    assert score(as_json, ITEM, '{"city": "Rome"}') == 1 and score(as_json, ITEM, "Rome") == 0


@pytest.mark.parametrize("formula", [
    "__import__('os').system('id')", "a.__class__", "a ** 9", "(lambda: 1)()", "[a][0]", "'a' * 9", "b",
    "max()", "a if a else 1", "1" + " + 1" * 300, "(" * 90 + "a" + ")" * 90 + ".", "True + a", "a + open",
])  # fmt: skip
def test_a_formula_is_arithmetic_alone(formula: str) -> None:
    with pytest.raises(RecipeError, match="calculate_output"):
        check_grader({"type": "multi", "graders": {"a": EXACT}, "calculate_output": formula})


BAD: list[tuple[Any, str]] = [
    ([], "must be an object"),
    ({}, "known are string_check"),
    ({"type": "python", "source": "def grade(sample, item): return 1"}, "runs code of a user"),
    ({"type": "score_model"}, "asks a model"),
    ({**EXACT, "operation": "regex"}, "operation must be one of"),
    (without(EXACT, "reference"), "'reference' is missing"),
    ({**EXACT, "reference": 1}, "'reference' has the wrong type"),
    ({**EXACT, "pass_threshold": 1}, "unknown key 'pass_threshold'"),
    ({**EXACT, "input": "{{os.environ}}"}, "is unknown; fields are item.NAME"),
    (without(similar("meteor"), "operation"), "evaluation_metric must be one of"),
    ({"type": "multi", "graders": {}, "calculate_output": "1"}, "must hold 1 to"),
    (
        {"type": "multi", "graders": {"m": {"type": "multi"}}, "calculate_output": "m"},
        "is a multi grader in another",
    ),
]


@pytest.mark.parametrize(("grader", "says"), BAD)
def test_bad_graders_are_refused(grader: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        check_grader(grader)


def test_a_field_that_a_row_lacks_is_named() -> None:
    with pytest.raises(MissingField, match=r"'item\.answer'"):
        check_fields(check_grader(EXACT), {"other": 1})
