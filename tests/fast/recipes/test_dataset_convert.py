"""FT-05: tables of any usual shape become conversations, and bad ones say what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import dataset_convert
from tests.fast.recipes.conftest import RECIPES

USER_ASSISTANT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def convert(path: Path, *flags: str) -> list[list[dict[str, str]]]:
    output = path.with_name("converted.jsonl")
    assert dataset_convert.main([str(path), "--output", str(output), *flags]) == 0
    return [json.loads(line)["messages"] for line in output.read_text("utf-8").splitlines()]


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def failure(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The message of a failed run; nothing may be written."""
    output = path.with_name("converted.jsonl")
    assert dataset_convert.main([str(path), "--output", str(output), *flags]) == 1
    assert not output.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "question,answer\nHi,Hello\n"),
        ("a.json", '[{"prompt": "Hi", "completion": "Hello"}]'),
        ("wrapped.json", '{"version": 1, "rows": [{"user": "Hi", "assistant": "Hello"}]}'),
        ("a.jsonl", '{"instruction": "Hi", "output": "Hello"}\n'),
        ("messages.jsonl", json.dumps({"messages": USER_ASSISTANT})),
        ("text.jsonl", json.dumps({"messages": json.dumps(USER_ASSISTANT)})),
        (
            "sharegpt.json",
            '[{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}]',
        ),
        ("bom.csv", "\ufeffquestion,answer\nHi,Hello\n"),
    ],
)
def test_every_format_and_shape_gives_the_same_conversation(tmp_path: Path, name: str, content: str) -> None:
    assert convert(write(tmp_path, name, content)) == [USER_ASSISTANT]


def test_parquet_with_a_system_column_is_read(tmp_path: Path) -> None:
    table = pyarrow.table({"system": ["Be kind.", None], "user": ["Hi"] * 2, "assistant": ["Hello"] * 2})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path)
    assert convert(path) == [[{"role": "system", "content": "Be kind."}, *USER_ASSISTANT], USER_ASSISTANT]


def test_turns_are_grouped_by_conversation_and_ordered_by_sequence(tmp_path: Path) -> None:
    rows = [
        {"id_conversation": "b", "sequence": 1, "rol1": "more", "rol2": "sure"},
        {"id_conversation": "a", "sequence": 0, "rol1": "x", "rol2": "y"},
        {"id_conversation": "b", "sequence": 0, "rol1": "Hi", "rol2": "Hello"},
    ]
    found = convert(write(tmp_path, "a.json", json.dumps(rows)))
    assert [[message["content"] for message in chat] for chat in found] == [
        ["Hi", "Hello", "more", "sure"],
        ["x", "y"],
    ]


def test_named_columns_win_over_guessed_ones_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "a.csv", "text,category,other\nHi,greeting,Hello\n")
    assert convert(path, "--assistant-column", "other") == [USER_ASSISTANT]
    assert "user='text', assistant='other'" in capsys.readouterr().err


def test_a_system_prompt_goes_before_every_conversation(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "user,assistant\nHi,Hello\n")
    assert convert(path, "--system-prompt", "Be kind.")[0][0] == {"role": "system", "content": "Be kind."}


def test_one_row_is_enough(tmp_path: Path) -> None:
    assert len(convert(write(tmp_path, "a.csv", "user,assistant\nHi,Hello"))) == 1


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl", "a.parquet"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the file is empty" in failure(write(tmp_path, name, ""), capsys)


def test_a_header_without_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no row" in failure(write(tmp_path, "a.csv", "user,assistant\n"), capsys)


def test_a_missing_column_names_those_that_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a.csv", "frage,antwort\nHi,Hello\n")
    assert "columns are: frage, antwort" in failure(path, capsys)
    message = failure(path, capsys, "--user-column", "nope", "--assistant-column", "antwort")
    assert "no column 'nope'" in message and "frage, antwort" in message


BROKEN = {
    "a.jsonl": '{"user": "Hi", "assistant": "Hello"}\n{"user": "Hi", \n',
    "a.csv": "user,assistant\nHi,Hello\n\nHi,Hello,too many\n",
}


@pytest.mark.parametrize(("name", "line"), [("a.jsonl", 2), ("a.csv", 4)])
def test_a_broken_line_is_named_and_can_be_skipped(
    tmp_path: Path, name: str, line: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, name, BROKEN[name])
    message = failure(path, capsys)
    assert f"line {line}" in message and "--skip-bad" in message
    assert convert(path, "--skip-bad") == [USER_ASSISTANT]
    assert "skipped 1 bad records" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_line_that_is_not_utf8_is_named_and_can_be_skipped(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"a.jsonl": '{"user": "Hi", "assistant": "Hello"}\n', "a.csv": "user,assistant\nHi,Hello\n"}
    path = write(tmp_path, name, good[name].encode() + "Gr\u00fc\u00dfe,x\n".encode("latin-1"))
    line = good[name].count("\n") + 1
    assert f"line {line}: not UTF-8" in failure(path, capsys)
    assert convert(path, "--skip-bad") == [USER_ASSISTANT]


def test_broken_json_and_parquet_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "line 2: broken JSON" in failure(write(tmp_path, "a.json", '[\n{"user" 1}]'), capsys)
    assert "--format jsonl" in failure(write(tmp_path, "b.json", '{"a": 1}\n{"a": 2}\n'), capsys)
    assert "not a readable Parquet" in failure(write(tmp_path, "a.parquet", b"PAR1 no"), capsys)


def test_an_unknown_ending_asks_for_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--format" in failure(write(tmp_path, "a.dat", "x"), capsys)


def test_a_row_without_an_answer_is_a_bad_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a.csv", "user,assistant\nHi,\nHi,Hello\n")
    assert "line 2" in failure(path, capsys)
    assert convert(path, "--skip-bad") == [USER_ASSISTANT]


def test_the_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a.jsonl", BROKEN["a.jsonl"].splitlines()[0])
    assert dataset_convert.main([str(path)]) == 1
    assert "would overwrite" in capsys.readouterr().err


def test_the_script_ends_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, RECIPES / "dataset_convert.py", tmp_path / "none.csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "no such file" in done.stderr
