"""FT-05: files in each encoding and dialect are read, or refused with their row. Rebuilt from public reports
(F5 to F9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.fast.recipes.data_reader import QUESTION, Reader, said, write

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
