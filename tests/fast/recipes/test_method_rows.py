"""Rows of preferences and of tasks: the forms that are read, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dataset_convert
import dataset_split
from method_rows import DPO, REINFORCEMENT, read_records
from tests.fast.recipes.data_reader import Reader, said, write
from tests.fast.recipes.test_graders import EXACT
from tests.fast.recipes.test_tool_calls import TOOL, call

ASKED, GOOD, BAD = said("user", "Hi"), said("assistant", "Hello"), said("assistant", "No")
OPENAI = {"input": {"messages": [ASKED]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]}
TRL = {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}
PLAIN = {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}
WHOLE = {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}


def converted(path: Path, method: str, *flags: str) -> list[dict[str, Any]]:
    output = path.with_name("converted.jsonl")
    assert dataset_convert.main([str(path), "--method", method, "--output", str(output), *flags]) == 0
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("row", [OPENAI, TRL, PLAIN, WHOLE], ids=["openai", "trl", "plain", "whole"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_preferences_of_each_form_are_the_same(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    path = write(tmp_path, name, [row])
    assert converted(path, DPO) == [OPENAI]
    [record] = read_records(path.with_name("converted.jsonl"), DPO)
    assert record.conversation == [ASKED, GOOD]


def test_preferences_may_have_tools(tmp_path: Path) -> None:
    better = said("assistant", None, tool_calls=[call()])
    row = {**OPENAI, "input": {"messages": [ASKED], "tools": [TOOL]}, "preferred_output": [better]}
    [found] = converted(write(tmp_path, "a.jsonl", [row]), DPO)
    assert found["input"]["tools"] == [TOOL]
    assert found["preferred_output"][0]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}


BAD_PREFERENCES: list[tuple[dict[str, Any], str]] = [
    ({**OPENAI, "non_preferred_output": [GOOD]}, "both answers are the same"),
    ({**OPENAI, "preferred_output": [GOOD, ASKED, GOOD]}, "must be one message of the assistant"),
    ({**OPENAI, "preferred_output": [ASKED]}, "roles must be"),
    ({**OPENAI, "preferred_output": [said("assistant", None, tool_calls=[call()])]}, "not in 'tools'"),
    ({**OPENAI, "input": {"messages": [ASKED, GOOD]}}, "the prompt must end with a message of the user"),
    ({**OPENAI, "input": {"messages": []}}, "the prompt: must be a list with at least one message"),
    ({**OPENAI, "input": {"messages": [ASKED], "x": 1}}, "'input' has 'x', which is not used"),
    ({"messages": [ASKED, GOOD]}, "a preference has 'input'"),
    ({"prompt": "Hi", "chosen": "Hello"}, "a preference has 'input'"),
    ({"prompt": "Hi", "chosen": "", "rejected": "No"}, "has no content"),
]


@pytest.mark.parametrize(("row", "says"), BAD_PREFERENCES)
def test_bad_preferences_are_named(tmp_path: Path, reader: Reader, row: dict[str, Any], says: str) -> None:
    error = reader.refusal(write(tmp_path, "a.jsonl", [OPENAI, row]), "--method", DPO)
    assert "line 2" in error and says in error


def test_columns_that_are_not_used_are_named(tmp_path: Path, reader: Reader) -> None:
    converted(write(tmp_path, "a.jsonl", [{**PLAIN, "score_chosen": 5}]), DPO)
    assert "columns not used: 'score_chosen'" in reader.said()


@pytest.mark.parametrize(
    "asked", [{"prompt": "Hi"}, {"messages": [ASKED]}, {"messages": json.dumps([ASKED])}]
)
def test_tasks_keep_the_fields_of_graders(tmp_path: Path, asked: dict[str, Any]) -> None:
    grader = tmp_path / "grader.json"
    grader.write_text(json.dumps(EXACT))
    path = write(tmp_path, "a.jsonl", [{**asked, "answer": "Paris", "more": {"n": [1]}}])
    [found] = converted(path, REINFORCEMENT, "--grader", str(grader))
    assert found == {"messages": [ASKED], "answer": "Paris", "more": {"n": [1]}}


BAD_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "Hi"}, "the grader reads 'item.answer', which the row does not have"),
    ({"messages": [ASKED, GOOD], "answer": "x"}, "the last message must be of the user"),
    ({"answer": "x"}, "must be a list with at least one message"),
]


@pytest.mark.parametrize(("row", "says"), BAD_TASKS)
def test_bad_tasks_are_named(tmp_path: Path, reader: Reader, row: dict[str, Any], says: str) -> None:
    grader = tmp_path / "grader.json"
    grader.write_text(json.dumps(EXACT))
    path = write(tmp_path, "a.jsonl", [{"prompt": "Hi", "answer": "Paris"}, row])
    error = reader.refusal(path, "--method", REINFORCEMENT, "--grader", str(grader))
    assert "line 2" in error and says in error


@pytest.mark.parametrize(("method", "row"), [(DPO, PLAIN), (REINFORCEMENT, {"prompt": "Hi", "answer": "x"})])
def test_a_tenth_is_split_off(tmp_path: Path, method: str, row: dict[str, Any]) -> None:
    rows = [{**row, "prompt": f"Question {number}"} for number in range(20)]
    path = write(tmp_path, "a.jsonl", rows)
    converted(path, method)
    chats = path.with_name("converted.jsonl")
    assert dataset_split.main([str(chats), "--method", method, "--ratio", "0.9", "--rand-sort"]) == 0
    parts = [read_records(tmp_path / f"converted_{part}.jsonl", method) for part in ("train", "test")]
    assert [len(part) for part in parts] == [18, 2]


def test_personal_data_in_answers_are_found(tmp_path: Path, reader: Reader) -> None:
    path = write(tmp_path, "a.jsonl", [{**PLAIN, "rejected": "Write to jo@example.com"}])
    assert "1 e-mail address" in reader.refusal(path, "--method", DPO, "--refuse-personal-data")
