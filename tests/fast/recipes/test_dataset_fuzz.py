"""FT-05: whatever a file holds, the reader ends with a result or one line, and what it takes it keeps."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import dataset_convert
from chat_messages import MARKS, UNUSED_KEYS, check_conversation
from recipe_errors import RecipeError

TEXT = st.text(max_size=12)
WORDS = st.text("aß;,|\t\"'\n\r\\ ", min_size=1, max_size=12).filter(str.strip)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=True) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*MARKS, "role", "from", "content", "value", "tools", "name", "reasoning_content"])
ROLES = st.sampled_from(["system", "user", "assistant", "human", "gpt", "tool"])
COLUMNS = st.sampled_from(
    ["messages", "prompt", "completion", "system", "context", "weight", "conversation_id", "turn", "other"]
)
MESSAGE = st.dictionaries(KEYS, VALUES, max_size=3) | st.builds(
    lambda role, content, more: {"role": role, "content": content, **more},
    ROLES, WORDS | VALUES, st.dictionaries(KEYS, VALUES, max_size=1),
)  # fmt: skip
ROW = st.dictionaries(COLUMNS, VALUES | WORDS | st.lists(MESSAGE, max_size=4), max_size=5)
fast = settings(derandomize=True, deadline=None, max_examples=60)


def read(name: str, content: bytes, *flags: str) -> list[list[dict[str, Any]]] | None:
    """Return the conversations; None where the file was refused, in one line. Anything else is raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        output = Path(folder) / "out.jsonl"
        code = dataset_convert.main([str(path), "--output", str(output), *flags])
        assert code in (0, 1) and output.exists() == (code == 0)
        return (
            [json.loads(line)["messages"] for line in output.read_text().splitlines()] if not code else None
        )


@fast
@given(st.binary(max_size=200), st.sampled_from(["a.csv", "a.json", "a.jsonl", "a.parquet"]), st.booleans())
def test_bytes(content: bytes, name: str, skip_bad: bool) -> None:
    read(name, content, *(["--skip-bad"] if skip_bad else []))


@fast
@given(st.lists(ROW, min_size=1, max_size=4), st.sampled_from(["a.json", "a.jsonl"]))
def test_rows(rows: list[dict[str, Any]], name: str) -> None:
    lines = [json.dumps(row) for row in rows]
    text = f"[{','.join(lines)}]" if name == "a.json" else "\n".join(lines)
    for chat in read(name, text.encode(), "--skip-bad") or []:
        assert [message["role"] for message in chat if message["role"] != "system"][-1] == "assistant"
        assert all(message["content"].strip() and message.get("weight", 0) == 0 for message in chat)
    read(name, text.encode())


@fast
@given(st.lists(MESSAGE, max_size=5))
def test_messages(messages: list[dict[str, Any]]) -> None:
    """Accepted messages keep their words and their marks: nothing that says 0 or false is learnt."""
    try:
        checked = check_conversation(messages, "here")
    except RecipeError:
        return
    for given_message, message in zip(messages, checked, strict=True):
        assert given_message.keys() <= {"role", "from", "content", "value", *MARKS, *UNUSED_KEYS} | {
            key for key, value in given_message.items() if not value or value != value
        }
        marks = [given_message.get(mark) for mark in MARKS]
        if message["role"] == "assistant":
            assert (message.get("weight") == 0) == any(mark is not None and mark == 0 for mark in marks)


@fast
@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le"]),
)
def test_tables_come_back(pairs: list[tuple[str, str]], separator: str, newline: str, encoding: str) -> None:
    """A table in each dialect and encoding gives its words, stripped, row by row."""
    made = io.StringIO(newline="")
    writer = csv.writer(made, delimiter=separator, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerows([("question", "answer"), *pairs])
    found = read("a.csv", made.getvalue().encode(encoding))
    assert found is not None
    assert [[message["content"] for message in chat] for chat in found] == [
        [text.strip() for text in pair] for pair in pairs
    ]
