"""Files to train on: what is refused, by line; and that the recipes' reader agrees."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from neocloud.gateway.openai_files.validation import validate_training_file

RECIPES = Path(__file__).resolve().parents[3] / "recipes"


def turn(role: Any, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def talk(*turns: Any) -> str:
    return json.dumps({"messages": list(turns)})


GOOD = talk(turn("system", "Be kind."), turn("user", "Hi"), turn("assistant", "Hello"))
BAD = [
    ('{"messages": [}', "not valid JSON"),
    ("[]", "must be a JSON object"),
    (talk(), "at least one message"),
    (talk("Hi"), "message 1 is not an object"),
    (talk(turn("user", "Hi"), turn("tool", "x")), "message 2 has role 'tool'"),
    (talk(turn("user", ""), turn("assistant", "x")), "message 1 (user) has no content"),
    (talk(turn("user", "Hi"), turn("assistant", ["x"])), "message 2 (assistant) has no content"),
    (
        talk(turn("assistant", "x"), turn("user", "Hi")),
        "alternating user and assistant; found assistant, user",
    ),
    (
        talk(turn("user", "a"), turn("user", "b"), turn("assistant", "x")),
        "alternating user and assistant; found user, user, assistant",
    ),
    (talk(turn("system", "a")), "the last message must have"),
    (b"\xff\xfe".decode("latin-1"), "not valid JSON"),
]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("line", "says"), BAD)
def test_bad_lines_are_named(tmp_path: Path, line: str, says: str) -> None:
    result = validate_training_file(write(tmp_path / "f.jsonl", GOOD, "", line))
    assert [error.line for error in result.errors] == [3]
    assert says in result.errors[0].message


@pytest.fixture
def recipes_reader(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    import conversations  # noqa: PLC0415  recipes are scripts beside the package

    yield conversations
    for name in ("conversations", "recipe_errors"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("line", "says"), BAD)
def test_the_recipes_refuse_the_same_lines(tmp_path: Path, recipes_reader, line: str, says: str) -> None:
    with pytest.raises(recipes_reader.RecipeError, match="line 2"):
        recipes_reader.read_conversations(write(tmp_path / "f.jsonl", GOOD, line))


def test_the_recipes_take_what_is_taken_here(tmp_path: Path, recipes_reader) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, talk(turn("user", "a"), turn("assistant", "b")))
    assert validate_training_file(path).errors == []
    assert len(recipes_reader.read_conversations(path)) == 2


def test_here_the_last_turn_must_be_the_assistants(tmp_path: Path, recipes_reader) -> None:
    """The one thing that is asked beyond the recipes: they learn from the turns before it."""
    path = write(tmp_path / "f.jsonl", talk(turn("user", "a"), turn("assistant", "b"), turn("user", "c")))
    assert "the last message" in validate_training_file(path).errors[0].message
    assert len(recipes_reader.read_conversations(path)) == 1


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        (['{"prompt": "a", "completion": ""}'], 1, "`completion` must be a non-empty string"),
        (['{"text": 1}'], 1, "`text` must be a non-empty string"),
        (['{"text": "a"}', GOOD], 2, "all lines must have one format"),
        (['{"question": "a"}'], 1, "has none of"),
        ([], 1, "no lines"),
    ],
)
def test_other_kinds(tmp_path: Path, lines: list[str], line: int, says: str) -> None:
    result = validate_training_file(write(tmp_path / "f.jsonl", *lines))
    assert result.errors[0].line == line
    assert says in result.errors[0].message


def test_facts_tell_duplicates_and_lengths(tmp_path: Path) -> None:
    lines = ['{"prompt": "aa", "completion": "b"}'] * 2 + ['{"prompt": "a", "completion": "bcdef"}']
    result = validate_training_file(write(tmp_path / "f.jsonl", *lines))
    assert result.properties == {
        "kind": "prompt",
        "duplicates": 1,
        "characters": {"min": 3, "p50": 3, "p95": 6, "max": 6, "sum": 12},
    }
