"""Score answers of a model with a grader, which is data: no code of a user is run.

A grader is a JSON object of the OpenAI API: `string_check`, `text_similarity` or `multi`. Two more are ours:
`json_schema`, for answers in a form, and `tool_call`, for calls of tools. Its texts are templates, in which
`{{item.NAME}}` is a field of the row and `{{sample.output_text}}` the answer. A score is between 0 and 1.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError
from text_files import parse_json
from tool_calls import as_json

MOST_GRADERS, LONGEST_FORMULA, LONGEST_COMPARED = 20, 500, 20_000
OPERATIONS: dict[str, Callable[[str, str], bool]] = {
    "eq": lambda text, wanted: text == wanted,
    "ne": lambda text, wanted: text != wanted,
    "like": lambda text, wanted: wanted in text,
    "ilike": lambda text, wanted: wanted.casefold() in text.casefold(),
}
METRICS = ("fuzzy_match", "bleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l")
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z0-9_.\[\]-]{1,200})\s*\}\}")
_PART = re.compile(r"[A-Za-z0-9_-]+")
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_REQUIRED = {
    "string_check": {"input": str, "reference": str, "operation": str},
    "text_similarity": {"input": str, "reference": str, "evaluation_metric": str},
    "json_schema": {"schema": (dict, str)},
    "tool_call": {"reference": (dict, str)},
    "multi": {"graders": dict, "calculate_output": str},
}
_OPTIONAL = {"json_schema": {"input": str}, "tool_call": {"input": str}}
_REFUSED = {
    "python": "runs code of a user, which this service does not do; the other graders are data",
    "score_model": "asks a model, which is not supported",
    "label_model": "asks a model, which is not supported",
}
_ARITHMETIC: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
ANSWER = "{{sample.output_text}}"

Grader = Mapping[str, Any]


class MissingField(RecipeError):
    """A template names a field that the row does not have."""


def check_grader(grader: Any, where: str = "grader") -> Grader:
    """Return the grader. Raises RecipeError that names what is wrong with it, and where."""
    if not isinstance(grader, dict):
        raise RecipeError(f"{where} must be an object")
    kind = grader.get("type")
    if reason := _REFUSED.get(str(kind)):
        raise RecipeError(f"{where}: the type {kind!r} {reason}")
    if kind not in _REQUIRED:
        raise RecipeError(f"{where}: the type is {kind!r:.80}; known are {', '.join(_REQUIRED)}")
    required = _REQUIRED[kind]
    keys: dict[str, Any] = {**required, **_OPTIONAL.get(kind, {}), "type": str, "name": str}
    for key, value in grader.items():
        if key not in keys:
            raise RecipeError(f"{where}: unknown key {key!r:.80}; a {kind} has {', '.join(keys)}")
        if not isinstance(value, keys[key]):
            raise RecipeError(f"{where}: {key!r} has the wrong type")
    if missing := [key for key in required if key not in grader]:
        raise RecipeError(f"{where}: {missing[0]!r} is missing")
    _check_values(kind, grader, where)
    return grader


def read_grader(path: Path) -> Grader:
    try:
        found = parse_json(path.read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise RecipeError(f"grader: broken JSON ({error})") from error
    return check_grader(found)


def _check_values(kind: str, grader: Grader, where: str) -> None:
    if kind == "string_check" and grader["operation"] not in OPERATIONS:
        raise RecipeError(f"{where}: operation must be one of {', '.join(OPERATIONS)}")
    if kind == "text_similarity" and grader["evaluation_metric"] not in METRICS:
        raise RecipeError(f"{where}: evaluation_metric must be one of {', '.join(METRICS)}")
    if kind == "multi":
        graders = grader["graders"]
        if not 0 < len(graders) <= MOST_GRADERS:
            raise RecipeError(f"{where}: 'graders' must hold 1 to {MOST_GRADERS} graders by their names")
        for name, each in graders.items():
            if isinstance(each, dict) and each.get("type") == "multi":
                raise RecipeError(f"{where}: {name!r:.80} is a multi grader in another")
            check_grader(each, f"{where}: {name!r:.80}")
        calculated(grader["calculate_output"], dict.fromkeys(graders, 1.0), where)
    for path in _paths(grader):
        if path.split(".")[0] not in ("item", "sample"):
            raise RecipeError(f"{where}: {{{{{path}}}}} is unknown; fields are item.NAME and {ANSWER}")


def _paths(grader: Grader) -> list[str]:
    texts = [value for value in grader.values() if isinstance(value, str)]
    return [path for text in texts for path in _TEMPLATE.findall(text)]


def check_fields(grader: Grader, item: Mapping[str, Any]) -> None:
    """Raises MissingField where the grader reads a field that this row does not have."""
    graders = grader["graders"].values() if grader["type"] == "multi" else [grader]
    for each in graders:
        for path in _paths(each):
            if path.startswith("item."):
                _look_up({"item": item}, path)


def score(grader: Grader, item: Mapping[str, Any], answer: str) -> float:
    """Return the score of an answer to a row, between 0 and 1."""
    kind = grader["type"]
    if kind == "multi":
        found = {name: score(each, item, answer) for name, each in grader["graders"].items()}
        return min(max(calculated(grader["calculate_output"], found), 0.0), 1.0)
    fields = _fields(item, answer)
    try:
        text = filled(grader.get("input", ANSWER), fields)
    except MissingField:  # an answer that is no JSON has no output_json
        return 0.0
    if kind == "json_schema":
        return _has_form(text, grader["schema"], fields)
    if kind == "tool_call":
        return _calls_alike(text, _value(grader["reference"], fields))
    reference = filled(grader["reference"], fields)
    if kind == "string_check":
        return float(OPERATIONS[grader["operation"]](text.strip(), reference.strip()))
    return _similarity(grader["evaluation_metric"], text, reference)


def _fields(item: Mapping[str, Any], answer: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {"output_text": answer}
    with contextlib.suppress(ValueError, RecursionError):
        found["output_json"] = json.loads(answer)
    return {"item": item, "sample": found}


def filled(template: str, fields: Mapping[str, Any]) -> str:
    """Return the template with its fields. What a field holds is text, and no template."""

    def text_of(found: re.Match[str]) -> str:
        value = _look_up(fields, found[1])
        return value if isinstance(value, str) else as_json(value)

    return _TEMPLATE.sub(text_of, template)


def _look_up(fields: Mapping[str, Any], path: str) -> Any:
    value: Any = fields
    for part in _PART.findall(path):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (LookupError, TypeError, ValueError):
            raise MissingField(f"the grader reads {path!r}, which the row does not have") from None
    return value


def _value(given: Any, fields: Mapping[str, Any]) -> Any:
    """Return an object that is given as it is, as the name of a field, or as JSON."""
    if not isinstance(given, str):
        return given
    text = filled(given, fields)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _has_form(text: str, schema: Any, fields: Mapping[str, Any]) -> float:
    import jsonschema  # noqa: PLC0415  only this grader needs it
    import referencing.exceptions  # noqa: PLC0415

    try:
        value = json.loads(text)
        validator = jsonschema.Draft202012Validator(_value(schema, fields), registry=referencing.Registry())
        return float(validator.is_valid(value))
    except (ValueError, TypeError, RecursionError, jsonschema.SchemaError, re.error):
        return 0.0
    except referencing.exceptions.Unresolvable:  # nothing is fetched for a schema
        return 0.0


def _calls_alike(text: str, wanted: Any) -> float:
    """Return 1 for the same call, a half for the same tool with other arguments, else 0."""
    found = _call(_TOOL_CALL.sub(lambda match: match[1], text.strip()) if "<tool_call>" in text else text)
    wanted = _call(wanted)
    if found is None or wanted is None or found[0] != wanted[0]:
        return 0.0
    return 1.0 if found[1] == wanted[1] else 0.5


def _call(value: Any) -> tuple[str, Any] | None:
    """Return name and arguments of a call in one of its forms; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    value = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return value["name"], arguments


def _similarity(metric: str, text: str, reference: str) -> float:
    text, reference = text[:LONGEST_COMPARED], reference[:LONGEST_COMPARED]
    if metric == "fuzzy_match":
        return difflib.SequenceMatcher(None, text.split(), reference.split(), autojunk=False).ratio()
    if metric == "bleu":
        import sacrebleu  # noqa: PLC0415  only this metric needs it

        return sacrebleu.sentence_bleu(text, [reference]).score / 100
    kind = metric.replace("_", "").replace("rougel", "rougeL")
    return _rouge(kind).score(reference, text)[kind].fmeasure


@cache
def _rouge(kind: str) -> Any:
    from rouge_score import rouge_scorer  # noqa: PLC0415  only these metrics need it

    return rouge_scorer.RougeScorer([kind])


def calculated(formula: str, values: Mapping[str, float], where: str = "grader") -> float:
    """Return the value of a formula of numbers, names, + - * / and min, max, abs."""
    if len(formula) > LONGEST_FORMULA:
        raise RecipeError(f"{where}: calculate_output is longer than {LONGEST_FORMULA} characters")
    try:
        return float(_evaluated(ast.parse(formula, mode="eval").body, values))
    except ZeroDivisionError:
        return 0.0
    except (
        SyntaxError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        raise RecipeError(
            f"{where}: calculate_output must be a formula of + - * /, numbers, min, max, abs and the names of"
            f" its graders ({str(error)[:80]})"
        ) from error


def _evaluated(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_evaluated(left, values), _evaluated(right, values))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_evaluated(operand, values))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as parts, keywords=[]) if name in _FUNCTIONS:
            found = [_evaluated(part, values) for part in parts]
            return _FUNCTIONS[name](*found) if name == "abs" or len(found) > 1 else found[0]
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not allowed")
