"""FT-05: what a data set says is learnt as its owner meant it, or refused with row and column; nothing is
dropped without a word. Rebuilt from public reports (F1 to F16)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import dataset_convert
from conversations import read_conversations

Rows = Sequence[dict[str, Any]]


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


QUESTION, ANSWER = said("user", "Hi"), said("assistant", "Hello")
LISTS = ("a.json", "a.jsonl", "a.parquet")
TABLES = (*LISTS, "a.csv")


def write(folder: Path, name: str, rows: Rows) -> Path:
    path = folder / name
    if name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith("json"):
        path.write_text(json.dumps(rows))
    elif name.endswith("parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        columns = list(rows[0])
        lines = [columns, *([row[column] for column in columns] for row in rows)]
        path.write_text(
            "".join(",".join(f'"{"" if v is None else v}"' for v in line) + "\n" for line in lines)
        )
    return path


class Reader:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def learnt(self, path: Path, *flags: str) -> list[list[dict[str, Any]]]:
        output = path.with_name("converted.jsonl")
        assert dataset_convert.main([str(path), "--output", str(output), *flags]) == 0, self.said()
        return [json.loads(line)["messages"] for line in output.read_text("utf-8").splitlines()]

    def texts(self, path: Path, *flags: str) -> list[list[str]]:
        return [[message["content"] for message in chat] for chat in self.learnt(path, *flags)]

    def said(self) -> str:
        return self.capsys.readouterr().err

    def refusal(self, path: Path, *flags: str) -> str:
        """Return the line of the error, as users of the job and of `neo tune` see it, who have no options."""
        output = path.with_name("converted.jsonl")
        output.unlink(missing_ok=True)
        assert dataset_convert.main([str(path), "--output", str(output), *flags]) == 1
        assert not output.exists()
        [error] = [line for line in self.said().splitlines() if ": error: " in line]
        assert " --" not in error
        return error


@pytest.fixture
def reader(capsys: pytest.CaptureFixture[str]) -> Reader:
    return Reader(capsys)


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


@pytest.mark.parametrize("column", ["tools", "functions", "images", "reasoning_content"])
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


CSV = 'question,answer\n"Hi, you","Grüße; Anna"\n'
UTF = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("encoding", UTF)
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_unicode_is_read_in_each_encoding(tmp_path: Path, reader: Reader, encoding: str, name: str) -> None:
    row = json.dumps({"question": "Hi, you", "answer": "Grüße; Anna"}, ensure_ascii=False)
    text = {"a.csv": CSV, "a.json": f"[{row}]", "a.jsonl": row + "\n"}[name]
    (tmp_path / name).write_bytes(text.encode(encoding))
    assert reader.texts(tmp_path / name) == [["Hi, you", "Grüße; Anna"]]


def test_another_encoding_is_named_with_its_row(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('question,answer\nHi,"one\ntwo"\nHi,Grüße\n'.encode("windows-1252"))
    assert "line 4: not UTF-8 (byte 0xfc at position" in reader.refusal(path)
    path.write_bytes('question,answer\nHi,"one\nGrüße\ntwo"\nHi,Hello\n'.encode("windows-1252"))
    assert reader.texts(path, "--skip-bad") == [["Hi", "Hello"]], "no half of a field is learnt"
    path.write_bytes(b"question,answer\n" + "Hi,Hello\n".encode("utf-16-le"))
    assert "holds a zero byte" in reader.refusal(path)
    path.write_bytes(CSV.encode("utf-16")[:-1])
    assert "not UTF-16" in reader.refusal(path)


@pytest.mark.parametrize("size", [131_073, 3_000_000])
def test_a_long_field_is_read(tmp_path: Path, reader: Reader, size: int) -> None:
    path = write(
        tmp_path, "a.csv", [{"question": "x" * size, "answer": "y"}, {"question": "q", "answer": "a"}]
    )
    assert [len(chat[0]) for chat in reader.texts(path)] == [size, 1]


@pytest.mark.parametrize("column", ["question", "answer", "messages"])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_half_a_surrogate_pair_is_a_bad_row(tmp_path: Path, reader: Reader, column: str, name: str) -> None:
    good: dict[str, Any] = {"question": "Hi \U0001f600", "answer": "Hello"}
    bad: dict[str, Any] = good | {column: "Hi \ud83d"}
    if column == "messages":
        good, bad = ({"messages": [QUESTION, said("assistant", text)]} for text in ("Hello", "Hi \ud83d"))
    path = write(tmp_path, name, [good, bad])
    assert "half of a surrogate pair" in (error := reader.refusal(path)) and (
        "line 2" in error or "row 2" in error
    )
    assert len(reader.learnt(path, "--skip-bad")) == 1


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_the_csv_of_spreadsheets_and_databases_is_read(
    tmp_path: Path, reader: Reader, separator: str, newline: str
) -> None:
    lines = [["question", "answer", ""], ['"Hi, you; and | ""you"""', "one\ttwo".replace(separator, " "), ""]]
    lines += [["", "", ""], [' "Hi"', "Hello", ""]]
    text = newline.join(separator.join(line) for line in lines)
    for above in ("", f"sep={separator}{newline}"):
        (tmp_path / "a.csv").write_bytes((above + text).encode())
        found = reader.texts(tmp_path / "a.csv")
        assert [chat[0] for chat in found] == ['Hi, you; and | "you"', "Hi"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("question~answer\nHi~Hello\n", "the columns are: question~answer"),
        (
            "question;answer\nHi;Hello;more\n",
            "line 2: 3 fields, but the header names 2, separated by semicolons",
        ),
        ("a;b,c\nx;y,z\n", "comma and semicolon are in the header, and more than one of them fits"),
        ('question,answer\n"a \\"b\\" c",d\n', "a quote inside one is written twice"),
        ('question,answer\na,"b\nc,d\n', "line 2: broken CSV (a quoted field begins and does not end"),
        ("question,answer,answer\na,b,c\n", "names 'answer' twice"),
    ],
)
def test_other_csv_is_refused_with_what_was_seen(
    tmp_path: Path, reader: Reader, text: str, says: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert says in reader.refusal(tmp_path / "a.csv")


def test_rows_decide_between_two_separators(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "a.csv").write_text("question;answer (yes, or no)\nHi;Hello\n")
    flags = ("--assistant-column", "answer (yes, or no)")
    assert reader.texts(tmp_path / "a.csv", *flags) == [["Hi", "Hello"]]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(("name", "where"), [("a.json", "row 2"), ("a.jsonl", "line 2")])
def test_what_json_has_not_is_broken_json(
    tmp_path: Path, reader: Reader, value: str, name: str, where: str
) -> None:
    path = write(tmp_path, name, [{"question": "a", "answer": "b"}, {"question": "a", "answer": "VALUE"}])
    path.write_text(path.read_text().replace('"VALUE"', value))
    assert f"{where}: broken JSON ({value} is no JSON" in reader.refusal(path)


def test_nan_of_a_table_is_no_answer(tmp_path: Path, reader: Reader) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"question": ["a"], "answer": [float("nan")]}), tmp_path / "a.parquet"
    )
    assert "row 1: message 2 (assistant) has no content" in reader.refusal(tmp_path / "a.parquet")
    path = write(tmp_path, "a.csv", [{"question": "not a number?", "answer": "nan"}])
    assert reader.texts(path) == [["not a number?", "nan"]], "text that is right"


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_name_twice_in_an_object_is_broken_json(tmp_path: Path, reader: Reader, name: str) -> None:
    path = tmp_path / name
    row = '{"question": "a", "answer": "b", "answer": "c"}\n'
    path.write_text(f"[{row}]" if name == "a.json" else row)
    assert "'answer' occurs twice" in (error := reader.refusal(path)) and (
        " row 1" in error or " line 1" in error
    )


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
def test_two_strangers_are_never_one_conversation(
    tmp_path: Path, reader: Reader, missing: Any, name: str
) -> None:
    ids = [1.0, missing, missing] if isinstance(missing, float) else ["1", missing, missing]
    rows = [{"conversation_id": each, "user": f"Hi {n}", "assistant": "Hello"} for n, each in enumerate(ids)]
    path = write(tmp_path, name, rows)
    assert "no conversation id in column 'conversation_id'" in reader.refusal(path)
    assert reader.texts(path, "--skip-bad") == [["Hi 0", "Hello"]]


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
    path = write(tmp_path, "a.jsonl", [{"messages": [QUESTION, ANSWER], "tools": [{"type": "function"}]}])
    with pytest.raises(Exception, match="line 1: has 'tools' beside 'messages'; convert it"):
        read_conversations(path)
