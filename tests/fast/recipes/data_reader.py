"""A data set in a file, and what the recipe makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import dataset_convert

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
