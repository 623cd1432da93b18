"""Files to train on: what is refused when a job is created, by line and column. The reader is that of the
jobs: tests/fast/recipes holds what it takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.model_gateway.openai_files.validation import validate_file


def turn(role: Any, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def talk(*turns: Any, **more: Any) -> str:
    return json.dumps({"messages": list(turns), **more})


GOOD = talk(turn("system", "Be kind."), turn("user", "Hi"), turn("assistant", "Hello"))
HI, HELLO = turn("user", "Hi"), turn("assistant", "Hello")
BAD = [
    ('{"messages": [}', "broken JSON"),
    ("[]", "not an object"),
    (talk(), "column 'messages': must be a list with at least one message"),
    (talk("Hi"), "message 1 is not an object"),
    (talk(HI, turn("tool", "x")), "results of tools behind the answer that calls them"),
    (talk(turn("user", ""), HELLO), "message 1 (user) has no content"),
    (talk(HI, turn("assistant", ["x"])), "message 2 (assistant) has a part of the type 'str'"),
    (talk(HELLO, HI), "user and assistant in turn; found assistant, user"),
    (talk(HI, HI, HELLO), "user and assistant in turn; found user, user, assistant"),
    (talk(turn("system", "a")), "the last message must have"),
    (talk(HI, HELLO, HI), "the last message must have"),
    ("\xff\xfe", "broken JSON"),
    (talk(HI, turn("assistant", "WRONG", weight=0.5)), "message 2 (assistant): 'weight' is 0.5"),
    (talk(HI, turn("assistant", "x", tool_calls=[{"id": "1"}])), "'tool_calls': call 1 is no call"),
    (talk(HI, HELLO, tools=[{"type": "function"}]), "'tools': tool 1 has no 'function'"),
    (talk(HI, turn("assistant", "\ud83d")), "half of a surrogate pair"),
    (talk(HI, HELLO).replace('"Hello"', "NaN"), "NaN is no JSON"),
    (talk(HI, HELLO, context="Once."), "column 'context' holds something"),
    (f'{{"messages": {"[" * 9000 + "]" * 9000}}}', "nested too deeply"),
    ('{"prompt": "a", "completion": "b"}', "column 'messages': must be a list"),
]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("line", "says"), BAD)
async def test_bad_lines_are_named(tmp_path: Path, line: str, says: str) -> None:
    result = await validate_file("training", write(tmp_path / "f.jsonl", GOOD, "", line))
    assert [error.line for error in result.errors] == [3]
    message = result.errors[0].message
    assert message.startswith("Line 3") and says in message
    assert "--" not in message and "/" not in message, "no options and paths of a script"


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        (['{"prompt": "a", "completion": ""}'], 1, "message 2 (assistant) has no content"),
        (['{"prompt": ["a"], "completion": "b"}'], 1, "column 'prompt' holds a value of the type list"),
        (['{"text": "a"}'] * 3, 0, "Name them `prompt` and `completion`, or have one column `messages`"),
        (['{"user": "a", "text": "b", "label": "c"}'], 0, "user, text"),
        ([], 0, "no row in the file"),
    ],
)
async def test_other_kinds(tmp_path: Path, lines: list[str], line: int, says: str) -> None:
    result = await validate_file("training", write(tmp_path / "f.jsonl", *lines))
    assert result.errors[0].line == line
    assert says in result.errors[0].message and "--" not in result.errors[0].message


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
async def test_what_jobs_read_is_taken(tmp_path: Path, encoding: str) -> None:
    rows = [talk(HI, HELLO), talk(HI, turn("assistant", "WRONG", weight=0), HI, HELLO, system="Be kind.")]
    (tmp_path / "f.jsonl").write_text("\n".join(rows), encoding=encoding)
    result = await validate_file("training", tmp_path / "f.jsonl")
    assert (result.errors, result.lines) == ([], 2)
