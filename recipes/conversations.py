"""Read and write the file format that all recipes share: JSONL files of conversations.

Each line is `{"messages": [{"role": "user", "content": "..."}, ...]}`. A conversation may open
with one `system` message, then `user` and `assistant` take turns, and at least one `assistant`
message is there to learn from. An `assistant` message with `"weight": 0` is not learnt. Beside the messages,
`tools` lists the functions that the assistant may call. This module knows nothing of tokens or models, and
needs only the standard library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from chat_messages import (
    Conversation,
    NotToLearnError,
    Remarks,
    check_conversation,
    is_empty,
    tools_of,
)
from recipe_errors import BadRecordError, RecipeError, note
from text_files import not_text, parse_json, text_lines

KEYS = ("messages", "tools", "parallel_tool_calls")
LEFT_OUT = "records are marked as not to be learnt, and left out"


@dataclass
class BadRecords:
    """The bad records of a run: the first one ends it, or all are counted and the first few kept.

    Remarks are about records that are good, or left out because they are marked so.
    """

    skip: bool = False
    advice: str = "repair the record, or pass --skip-bad to leave such records out"
    count: int = 0
    examples: list[str] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)

    def add(self, error: BadRecordError) -> None:
        if not self.skip:
            raise RecipeError(str(error), self.advice)
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(str(error))

    def check(
        self, messages: Any, where: str, tools: Any = None, parallel: Any = None
    ) -> Conversation | None:
        """Return the conversation; None where it is bad, or marked as not to be learnt."""
        try:
            return check_conversation(messages, where, self.remarks, tools, parallel)
        except NotToLearnError:
            self.leave_out(where)
        except BadRecordError as error:
            self.add(error)
        return None

    def leave_out(self, where: str) -> None:
        """Count a record that is marked as not to be learnt."""
        self.remarks[LEFT_OUT] += 1

    def lines(self) -> list[str]:
        """Return the remarks, and the first bad records, as sentences."""
        found = [f"{times} {text}" for text, times in self.remarks.items()]
        if self.count:
            found.append(f"skipped {self.count} bad records, the first: {'; '.join(self.examples)}")
        return found


def numbered_lines(path: Path, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Yield the lines of a Unicode text file with their numbers; other lines are bad records."""
    for number, line in enumerate(text_lines(path), start=1):
        if wrong := not_text(line):
            bad.add(BadRecordError(f"{path}: line {number}: {wrong}"))
        else:
            yield number, line


def json_lines(path: Path, bad: BadRecords) -> Iterator[tuple[int, Any]]:
    """Yield the objects of a JSONL file with their line numbers; skip blank lines."""
    for number, line in numbered_lines(path, bad):
        if not line.strip():
            continue
        try:
            yield number, parse_json(line)
        except ValueError as error:
            wrong = str(error).replace(" at line 1 ", " at ")
            bad.add(BadRecordError(f"{path}: line {number}: broken JSON ({wrong})"))


def read_conversations(path: Path, bad: BadRecords | None = None) -> list[Conversation]:
    """Return all conversations of a JSONL file; an empty file is an error."""
    return list(each_conversation(path, bad or BadRecords()))


def each_conversation(path: Path, bad: BadRecords) -> Iterator[Conversation]:
    """Yield the conversations of a JSONL file; an empty file is an error, at its end."""
    count = 0
    for number, record in json_lines(path, bad):
        columns = record if isinstance(record, dict) else {}
        others = [name for name, value in columns.items() if name not in KEYS and not is_empty(value)]
        where = f"{path}: line {number}"
        if others:
            text = f"{where}: has {others[0]!r:.80} beside 'messages'; convert it with dataset_convert.py"
            bad.add(BadRecordError(text))
        elif checked := bad.check(
            columns.get("messages"),
            f"{where}: 'messages'",
            columns.get("tools"),
            columns.get("parallel_tool_calls"),
        ):
            count += 1
            yield checked
    if left_out := bad.remarks[LEFT_OUT]:
        note(f"{path}: {left_out} {LEFT_OUT}")
    if not count:
        found = f"all {bad.count} records are bad" if bad.count else "there is no conversation to learn in it"
        raise RecipeError(f"{path}: {found}; nothing to work on")


@contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """Write beside the target and rename at the end, so that readers never see half a file."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> int:
    """Write one conversation per line; return how many."""
    count = 0
    with atomic_text(path) as file:
        for messages in conversations:
            file.write(as_line(messages) + "\n")
            count += 1
    return count


def as_line(conversation: Conversation) -> str:
    """Return the line of a conversation in the file, without its end."""
    tools = tools_of(conversation)
    record = {"messages": conversation, **({"tools": tools} if tools else {})}
    return json.dumps(record, ensure_ascii=False)
