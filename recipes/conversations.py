"""Read, check and write the file format that all recipes share: JSONL files of conversations.

Each line is `{"messages": [{"role": "user", "content": "..."}, ...]}`. A conversation may open
with one `system` message, then `user` and `assistant` take turns, and at least one `assistant`
message is there to learn from. This module knows nothing of tokens or models, and needs only the
standard library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from recipe_errors import RecipeError

ROLES = ("system", "user", "assistant")

Message = dict[str, str]
Conversation = list[Message]


class BadRecordError(RecipeError):
    """A record cannot be used; `--skip-bad` leaves it out and counts it."""


@dataclass
class BadRecords:
    """The bad records of a run: the first one ends it, or all are counted and the first few kept."""

    skip: bool = False
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, error: BadRecordError) -> None:
        if not self.skip:
            raise RecipeError(f"{error}. Repair it, or pass --skip-bad to leave such records out")
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(str(error))


def check_conversation(messages: Any, where: str) -> Conversation:
    """Return the conversation with contents stripped; raise an error that names the fault and its place."""
    if not isinstance(messages, list) or not messages:
        raise BadRecordError(f"{where}: 'messages' must be a list with at least one message")
    checked: Conversation = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise BadRecordError(f"{where}: message {number} is not an object")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise BadRecordError(
                f"{where}: message {number} has role {role!r}, known roles are {', '.join(ROLES)}"
            )
        if not isinstance(content, str) or not content.strip():
            raise BadRecordError(f"{where}: message {number} ({role}) has no content")
        checked.append({"role": role, "content": content.strip()})
    _check_order([message["role"] for message in checked], where)
    return checked


def _check_order(roles: list[str], where: str) -> None:
    turns = roles[1:] if roles[0] == "system" else roles
    expected = [("user", "assistant")[number % 2] for number in range(len(turns))]
    if turns != expected:
        raise BadRecordError(
            f"{where}: roles must be an optional system, then user and assistant in turn;"
            f" found {', '.join(roles)}"
        )
    if "assistant" not in turns:
        raise BadRecordError(f"{where}: no assistant message, so there is nothing to learn")


def numbered_lines(path: Path, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 text file with their numbers; a line in another encoding is a bad record."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                bad.add(
                    BadRecordError(
                        f"{path}: line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at"
                        f" position {error.start + 1}); convert the file with"
                        f" `iconv -f ISO-8859-1 -t UTF-8 {path.name}` if it is Latin-1"
                    )
                )


def json_lines(path: Path, bad: BadRecords) -> Iterator[tuple[int, Any]]:
    """Yield the objects of a JSONL file with their line numbers; skip blank lines."""
    for number, line in numbered_lines(path, bad):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            bad.add(BadRecordError(f"{path}: line {number}: broken JSON ({error.msg})"))


def read_conversations(path: Path, bad: BadRecords | None = None) -> list[Conversation]:
    """Return all conversations of a JSONL file; an empty file is an error."""
    bad = bad or BadRecords()
    conversations: list[Conversation] = []
    for number, record in json_lines(path, bad):
        where = f"{path}: line {number}"
        try:
            messages = record.get("messages") if isinstance(record, dict) else None
            conversations.append(check_conversation(messages, where))
        except BadRecordError as error:
            bad.add(error)
    if not conversations:
        found = f"all {bad.count} records are bad" if bad.count else "the file is empty"
        raise RecipeError(f"{path}: {found}; nothing to work on")
    return conversations


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
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            count += 1
    return count
