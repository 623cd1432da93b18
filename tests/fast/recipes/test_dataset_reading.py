"""FT-05: what a data set says is learnt as its owner meant it, or refused with row and column; nothing is
dropped without a word. Rebuilt from public reports (F1 to F16)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import dataset_convert
from conversations import read_conversations
from tests.fast.recipes.data_reader import ANSWER, LISTS, QUESTION, TABLES, Reader, Rows, said, write

ALPACA = [
    {"instruction": "Translate to German.", "input": "Good day", "output": "Guten Tag"},
    {"instruction": "Say hello.", "input": "", "output": "Hello"},
]


@pytest.mark.parametrize("name", TABLES)
def test_the_input_of_an_instruction_is_learnt(tmp_path: Path, reader: Reader, name: str) -> None:
    found = reader.texts(write(tmp_path, name, ALPACA))
    assert found == [["Translate to German.\n\nGood day", "Guten Tag"], ["Say hello.", "Hello"]]


@pytest.mark.parametrize(
    ("column", "value"), [("context", "Once."), ("history", [["a", "b"]]), ("input", "x"), ("Passage", "x")]
)
def test_a_context_is_not_lost(tmp_path: Path, reader: Reader, column: str, value: Any) -> None:
    rows = [{"prompt": "Hi", "completion": "Hello", column: each} for each in (None, value)]
    path = write(tmp_path, "a.json", rows)
    assert f"row 2: column {column!r}" in reader.refusal(path)
    assert reader.texts(path, "--ignore-column", column) == [["Hi", "Hello"]] * 2
    assert f"not used: {column!r}" in reader.said()
    if isinstance(value, str):
        assert reader.texts(path, "--input-column", column) == [["Hi", "Hello"], [f"Hi\n\n{value}", "Hello"]]


def test_each_column_that_is_not_used_is_named(tmp_path: Path, reader: Reader) -> None:
    rows = [{"question": "Hi", "answer": "Hello", "topic": "x", "empty": "", "source": 1}]
    reader.texts(write(tmp_path, "a.csv", rows))
    assert "columns not used: 'topic', 'source'" in reader.said()


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("column", ["system", "system_prompt"])
def test_a_system_column_is_learnt_beside_messages(
    tmp_path: Path, reader: Reader, name: str, column: str
) -> None:
    own = [said("system", "Be kind."), QUESTION, ANSWER]
    rows = [{"messages": each, column: "Be kind."} for each in ([QUESTION, ANSWER], own)]
    assert reader.learnt(write(tmp_path, name, rows)) == [own, own]


def test_two_system_prompts_that_differ_are_a_bad_row(tmp_path: Path, reader: Reader) -> None:
    rows = [{"messages": [said("system", "Be rude."), QUESTION, ANSWER], "system": "Be kind."}]
    assert "line 1: the system message differs" in reader.refusal(write(tmp_path, "a.jsonl", rows))
    rows = [
        {"conversation_id": 1, "user": "Hi", "assistant": "Hello", "system": each} for each in ("a", "a", "b")
    ]
    assert "row 3: the conversation has another 'system'" in reader.refusal(write(tmp_path, "a.json", rows))


@pytest.mark.parametrize("column", ["functions", "images", "reasoning_content"])
def test_what_cannot_be_learnt_is_a_bad_row(tmp_path: Path, reader: Reader, column: str) -> None:
    rows: Rows = [{"messages": [QUESTION, ANSWER], column: each} for each in ([], [{"type": "function"}])]
    path = write(tmp_path, "a.jsonl", rows)
    assert f"line 2: column {column!r} is not empty" in reader.refusal(path)
    assert len(reader.learnt(path, "--skip-bad")) == 1


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_messages_in_two_columns_become_turns(tmp_path: Path, reader: Reader, name: str) -> None:
    rows = [{"prompt": [said("system", "Be kind."), QUESTION], "completion": [ANSWER]}]
    assert reader.learnt(write(tmp_path, name, rows)) == [[said("system", "Be kind."), QUESTION, ANSWER]]


def test_lists_of_messages_as_json_text_become_turns(tmp_path: Path, reader: Reader) -> None:
    rows = [{"prompt": json.dumps([QUESTION, ANSWER, said("user", "And?")]), "completion": "Bye"}]
    found = reader.learnt(write(tmp_path, "a.jsonl", rows))
    assert found == [[QUESTION, {**ANSWER, "weight": 0}, said("user", "And?"), said("assistant", "Bye")]]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["Rome", "Paris"], "of the type list"),
        ({"text": ["Rome"]}, "of the type object"),
        (True, "of the type boolean"),
        (str([QUESTION]), "a list of messages as text that is no JSON"),
        (1e999, "infinite number"),
    ],
)
@pytest.mark.parametrize("column", ["question", "answer", "system"])
def test_what_is_no_text_is_a_bad_row(
    tmp_path: Path, reader: Reader, value: Any, says: str, column: str
) -> None:
    column = "answer" if isinstance(value, str) else column  # a system prompt is text, whatever it holds
    good = {"question": "Hi", "answer": "Hello", "system": ""}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([good, good | {column: value}]).replace("Infinity", "1e999"))
    assert f"row 2: column {column!r} holds a" in (error := reader.refusal(path)) and says in error


def test_numbers_are_text(tmp_path: Path, reader: Reader) -> None:
    table = {"question": ["a", "b"], "answer": pyarrow.array([Decimal("1.50"), Decimal("2.25")])}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    assert reader.texts(tmp_path / "a.parquet") == [["a", "1.50"], ["b", "2.25"]]
    assert reader.texts(write(tmp_path, "a.json", [{"question": 0, "answer": 1}])) == [["0", "1"]]


MARKS: list[tuple[str, Any]] = [
    ("weight", 0), ("weight", 0.0), ("trainable", False), ("train", False), ("loss_mask", 0), ("loss", False),
]  # fmt: skip


@pytest.mark.parametrize(("mark", "value"), MARKS)
@pytest.mark.parametrize("name", LISTS)
def test_a_marked_answer_is_not_to_be_learnt(
    tmp_path: Path, reader: Reader, name: str, mark: str, value: Any
) -> None:
    wrong = said("assistant", "WRONG", **{mark: value})
    path = write(tmp_path, name, [{"messages": [QUESTION, wrong, QUESTION, ANSWER]}])
    unlearnt = said("assistant", "WRONG", weight=0)
    assert reader.learnt(path) == [[QUESTION, unlearnt, QUESTION, ANSWER]]
    assert read_conversations(path.with_name("converted.jsonl")) == [[QUESTION, unlearnt, QUESTION, ANSWER]]


def test_a_marked_turn_of_sharegpt_is_not_to_be_learnt(tmp_path: Path, reader: Reader) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "WRONG", "weight": 0}]
    turns += [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello", "weight": 1}]
    [chat] = reader.learnt(write(tmp_path, "a.json", [{"conversations": turns}]))
    assert [message.get("weight") for message in chat] == [None, 0, None, None]


@pytest.mark.parametrize(("mark", "value"), [each for each in MARKS if each[0] != "loss"])
def test_a_row_marked_as_not_to_be_learnt_is_left_out_and_counted(
    tmp_path: Path, reader: Reader, mark: str, value: Any
) -> None:
    rows: Rows = [
        {"messages": [QUESTION, ANSWER], mark: None},
        {"messages": [QUESTION, said("assistant", "WRONG")], mark: value},
    ]
    assert reader.learnt(write(tmp_path, "a.jsonl", rows)) == [[QUESTION, ANSWER]]
    assert "1 records are marked as not to be learnt" in reader.said()
    rows = [{"user": "Hi", "assistant": "WRONG", mark: value}]
    assert "marked as not to be learnt" in reader.refusal(write(tmp_path, "a.jsonl", rows))


def test_an_exchange_marked_as_not_to_be_learnt_stays_as_context(tmp_path: Path, reader: Reader) -> None:
    rows = [
        {"conversation_id": 1, "user": "Hi", "assistant": "WRONG", "train": 0},
        {"conversation_id": 1, "user": "Hi", "assistant": "Hello", "train": 1},
    ]
    [chat] = reader.learnt(write(tmp_path, "a.json", rows))
    assert [message.get("weight", 1) for message in chat if message["role"] == "assistant"] == [0, 1]


@pytest.mark.parametrize(
    "more",
    [
        {"weight": 0.5}, {"weight": "0"}, {"train": 2}, {"reasoning_content": "I think"}, {"refusal": "No."},
        {"tool_calls": [{"id": "1"}]}, {"function_call": {"name": "f"}}, {"audio": {"id": "1"}}, {"votes": 3},
    ],
)  # fmt: skip
def test_a_message_with_another_meaning_is_a_bad_row(
    tmp_path: Path, reader: Reader, more: dict[str, Any]
) -> None:
    rows = [{"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION, ANSWER | more]}]
    error = reader.refusal(write(tmp_path, "a.jsonl", rows))
    assert "line 2: column 'messages': message 2 (assistant)" in error and repr(next(iter(more))) in error


def test_keys_that_templates_do_not_show_are_named(tmp_path: Path, reader: Reader) -> None:
    more = {"id": "m1", "timestamp": "2026-11-28", "tool_calls": None, "refusal": None, "audio": {}}
    reader.learnt(write(tmp_path, "a.jsonl", [{"messages": [QUESTION, ANSWER | more]}]))
    shown = reader.said()
    assert "key 'id', which is not used" in shown and "'timestamp'" in shown and "tool_calls" not in shown


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("text", "Name them `prompt` and `completion`, or have one column `messages`"),
        ("customer agent text reply", "more than one column may hold the user's words: customer, text"),
        ("user text label", "user, text"),
        ("client question agent answer", "client, question"),
        ("question answer reply", "more than one column may hold the assistant's words: answer, reply"),
        ("messages conversations", "messages, conversations"),
        ("user assistant system system_prompt", "system, system_prompt"),
    ],
)
def test_columns_that_are_not_clear_are_listed(
    tmp_path: Path, reader: Reader, columns: str, says: str
) -> None:
    assert says in reader.refusal(write(tmp_path, "a.csv", [dict.fromkeys(columns.split(), "x")]))


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        ("user prompt completion", ["prompt", "completion"]),
        ("text prompt completion answer", ["prompt", "completion"]),
        ("id instruction response category", ["instruction", "response"]),
        ("text label", ["text", "label"]),
        ("input output", ["input", "output"]),
        ("Prompt Completion User", ["Prompt", "Completion"]),
    ],
)
def test_columns_that_are_clear_are_used(
    tmp_path: Path, reader: Reader, columns: str, used: list[str]
) -> None:
    assert reader.texts(write(tmp_path, "a.csv", [{name: name for name in columns.split()}])) == [used]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_parts_are_joined(tmp_path: Path, reader: Reader, kind: str) -> None:
    parts = [{"type": kind, "text": text, "image_url": None} for text in ("one", "two")]
    rows = [{"messages": [said("user", parts), ANSWER]}]
    assert reader.texts(write(tmp_path, "a.jsonl", rows)) == [["one\ntwo", "Hello"]]
    rows = [{"prompt": parts, "completion": "Hello"}]
    assert reader.texts(write(tmp_path, "a.jsonl", rows)) == [["one\ntwo", "Hello"]]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "'image_url'"),
        ({"type": "input_audio", "input_audio": {}}, "'input_audio'"),
        ("bare", "'str'"),
        ({"type": "text"}, "'text'"),
        ({"type": "text", "text": "a", "cache_control": {"type": "x"}}, "'cache_control'"),
    ],
)
def test_other_parts_are_refused_by_their_type(tmp_path: Path, reader: Reader, part: Any, says: str) -> None:
    rows = [{"messages": [said("user", [{"type": "text", "text": "Hi"}, part]), ANSWER]}]
    error = reader.refusal(write(tmp_path, "a.jsonl", rows))
    assert "line 1: column 'messages': message 1 (user) has a part" in error and says in error


@pytest.mark.parametrize(
    ("name", "missing"),
    [(name, each) for name in ("a.parquet", "a.jsonl", "a.csv") for each in (None, "", "  ")]
    + [("a.parquet", float("nan"))],
)
def test_unrelated_rows_are_never_one_conversation(
    tmp_path: Path, reader: Reader, missing: Any, name: str
) -> None:
    ids = [1.0, missing, missing] if isinstance(missing, float) else ["1", missing, missing]
    rows = [{"conversation_id": each, "user": f"Hi {n}", "assistant": "Hello"} for n, each in enumerate(ids)]
    path = write(tmp_path, name, rows)
    assert "no conversation id in column 'conversation_id'" in reader.refusal(path)
    assert reader.texts(path, "--skip-bad") == [["Hi 0", "Hello"]]


@pytest.mark.parametrize("name", TABLES)
def test_a_conversation_id_that_two_customers_share_is_refused(
    tmp_path: Path, reader: Reader, name: str
) -> None:
    """Numbers that begin again for each customer: the words of one would be context of the other's."""
    rows = [
        {"session_id": 1, "customer_id": "c1", "question": "My PIN is 1234", "answer": "Noted"},
        {"session_id": 1, "customer_id": "c2", "question": "What is my PIN?", "answer": "1234"},
    ]
    assert "another 'customer_id' in an earlier row" in reader.refusal(write(tmp_path, name, rows))
    assert len(reader.learnt(write(tmp_path, name, [{**row, "customer_id": "c1"} for row in rows]))) == 1
    assert len(reader.learnt(write(tmp_path, name, [rows[0], {**rows[1], "session_id": 2}]))) == 2


@pytest.mark.parametrize("places", [(1, None), (1, float("nan")), (1, "first"), (1, 1)])
def test_turns_without_a_place_are_not_ordered_by_chance(
    tmp_path: Path, reader: Reader, places: Iterable[Any]
) -> None:
    rows = [{"conversation_id": 1, "turn": str(p), "user": "Hi", "assistant": "Hello"} for p in places]
    rows.append({"conversation_id": 2, "turn": "1", "user": "Hi", "assistant": "Hello"})
    path = write(tmp_path, "a.jsonl", rows)
    assert "line 2" in reader.refusal(path)
    assert len(reader.learnt(path, "--skip-bad")) == 1, "a conversation with a hole is not learnt"


@pytest.mark.parametrize("value", [{"version": 1}, {"license": "MIT", "note": ""}])
def test_values_beside_the_rows_are_named(tmp_path: Path, reader: Reader, value: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**value, "rows": [{"user": "Hi", "assistant": "Hello"}]}))
    reader.learnt(path)
    assert repr(next(iter(value))) in (shown := reader.said()) and "'note'" not in shown


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("<think>a</think>b</think>c", "one block"),
        ("Well. <think>a</think>b", "one block"),
        ("<think>a", "does not end"),
        ("<think>a</think> ", "no answer after it"),
    ],
)
def test_reasoning_that_a_template_cuts_apart_is_a_bad_row(
    tmp_path: Path, reader: Reader, answer: str, says: str
) -> None:
    rows = [{"messages": [QUESTION, said("assistant", answer)]}]
    assert says in (error := reader.refusal(write(tmp_path, "a.jsonl", rows))) and "line 1" in error


def test_the_check_reports_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = {"prompt": "Hi", "completion": "Hello", "topic": "x"}, {"prompt": "Hi", "completion": ""}
    path = write(tmp_path, "a.jsonl", [good, bad, bad, bad, bad])
    assert dataset_convert.main([str(path), "--check"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["error_count"] == 4 and len(report["errors"]) == 3 and not report["notes"]
    assert report["errors"][0] == "line 2: message 2 (assistant) has no content"
    write(tmp_path, "a.jsonl", [good])
    assert dataset_convert.main([str(path), "--check"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["conversations"], report["errors"]) == (1, []) and "'topic'" in report["notes"][1]
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_other_recipes_read_no_raw_data(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"messages": [QUESTION, ANSWER], "functions": [{"name": "f"}]}])
    with pytest.raises(Exception, match="line 1: has 'functions' beside 'messages'; convert it"):
        read_conversations(path)
