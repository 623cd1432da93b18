"""Read the rows of the methods that learn from preferences and from rewards.

A preference has a prompt and two answers, the better one first: `input`, `preferred_output` and
`non_preferred_output` as in the OpenAI API, or `prompt`, `chosen` and `rejected` as TRL has them. A task has
a prompt, as `messages` or `prompt`, and fields that a grader compares an answer with. Rows come from the same
files as conversations, and the names of their columns are fixed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chat_messages import Conversation, Message, check_messages, is_empty
from conversations import BadRecords, atomic_text, json_lines
from dataset_overlap import Known
from dataset_rows import Table
from graders import Grader, check_fields
from recipe_errors import BadRecordError, RecipeError
from text_files import parse_json

SUPERVISED, DPO, REINFORCEMENT = METHODS = ("supervised", "dpo", "reinforcement")
ANSWERS = (("preferred_output", "non_preferred_output"), ("chosen", "rejected"))
TOOLS = ("tools", "parallel_tool_calls")


@dataclass(frozen=True)
class Preference:
    prompt: Conversation
    preferred: Message
    other: Message

    @property
    def conversation(self) -> Conversation:
        """The prompt with the preferred answer."""
        return Conversation([*self.prompt, self.preferred], self.prompt.tools)

    @property
    def messages(self) -> list[Message]:
        return [*self.prompt, self.preferred, self.other]

    def as_line(self) -> str:
        asked = {"messages": self.prompt, **({"tools": self.prompt.tools} if self.prompt.tools else {})}
        record = {"input": asked, ANSWERS[0][0]: [self.preferred], ANSWERS[0][1]: [self.other]}
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Task:
    prompt: Conversation
    item: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conversation(self) -> Conversation:
        return self.prompt

    @property
    def messages(self) -> list[Message]:
        return self.prompt

    def as_line(self) -> str:
        tools = {"tools": self.prompt.tools} if self.prompt.tools else {}
        return json.dumps({"messages": self.prompt, **tools, **self.item}, ensure_ascii=False)


Record = Preference | Task


def read_rows(
    table: Table, method: str, bad: BadRecords, grader: Grader | None = None
) -> Iterator[tuple[str, Record]]:
    """Yield the records of a table with their places; add each unusable one to `bad`."""
    made = _maker(method, grader)
    for where, row in table.rows(bad):
        try:
            yield where, made(row, where)
        except BadRecordError as error:
            bad.add(error)


def read_records(path: Path, method: str) -> list[Any]:
    """Return the records of a JSONL file that `write_records` wrote, or a user in the same form."""
    bad, made, found = BadRecords(), _maker(method, None), list[Record]()
    for number, row in json_lines(path, bad):
        where = f"{path}: line {number}"
        try:
            found.append(made(row if isinstance(row, dict) else {}, where))
        except BadRecordError as error:
            bad.add(error)
    if not found:
        raise RecipeError(f"{path}: there is no record in it; nothing to work on")
    return found


def known_records(path: Path, method: str) -> Known:
    """Return the prompts of a file."""
    known = Known()
    for record in read_records(path, method):
        known.add(record.prompt)
    return known


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write one record per line; return how many."""
    count = 0
    with atomic_text(path) as file:
        for record in records:
            file.write(record.as_line() + "\n")
            count += 1
    return count


def columns_used(method: str, columns: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns that are used, and those that are not."""
    if method == REINFORCEMENT:
        return columns, []
    names = {"input", "prompt", *TOOLS, *(name for pair in ANSWERS for name in pair)}
    return [each for each in columns if each in names], [each for each in columns if each not in names]


def _maker(method: str, grader: Grader | None) -> Callable[[dict[str, Any], str], Record]:
    if method == DPO:
        return _preference
    return lambda row, where: _task(row, where, grader)


def _preference(row: dict[str, Any], where: str) -> Preference:
    better, worse = next((pair for pair in ANSWERS if pair[0] in row), ("", ""))
    if not better or worse not in row:
        raise BadRecordError(
            f"{where}: a preference has 'input', 'preferred_output' and 'non_preferred_output', or 'prompt',"
            " 'chosen' and 'rejected'"
        )
    prompt, answers = _asked(row, where), [_listed(row[name]) for name in (better, worse)]
    if not prompt.messages:  # both answers are whole conversations, which begin alike
        prompt.messages, answers = _common(answers, where)
    asked = _prompt(prompt, where)
    preferred, other = (
        _answer(asked, answer, f"{where}: {name!r}", prompt.parallel)
        for answer, name in zip(answers, (better, worse), strict=True)
    )
    if (preferred["content"], preferred.get("tool_calls")) == (other["content"], other.get("tool_calls")):
        raise BadRecordError(f"{where}: both answers are the same, so neither is better")
    return Preference(asked, preferred, other)


@dataclass
class _Asked:
    messages: Any
    tools: Any = None
    parallel: Any = None


def _asked(row: dict[str, Any], where: str) -> _Asked:
    """Return the prompt of a row, not yet checked."""
    given = _listed(row.get("input"))
    if isinstance(given, dict):
        if more := [
            key for key, value in given.items() if key not in ("messages", *TOOLS) and not is_empty(value)
        ]:
            raise BadRecordError(f"{where}: 'input' has {more[0]!r:.80}, which is not used; remove it")
        return _Asked(_listed(given.get("messages")), given.get("tools"), given.get("parallel_tool_calls"))
    if not is_empty(given):
        raise BadRecordError(f"{where}: 'input' must be an object with 'messages'")
    prompt = _listed(row.get("prompt"))
    return _Asked(prompt, row.get("tools"), row.get("parallel_tool_calls"))


def _prompt(asked: _Asked, where: str) -> Conversation:
    messages = asked.messages
    if isinstance(messages, str) and messages.strip():
        messages = [{"role": "user", "content": messages}]
    found = check_messages(messages, f"{where}: the prompt", None, asked.tools, asked.parallel)
    if found[-1]["role"] not in ("user", "tool"):
        raise BadRecordError(
            f"{where}: the prompt must end with a message of the user, or the result of a tool"
        )
    return found


def _answer(prompt: Conversation, answer: Any, where: str, parallel: Any) -> Message:
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    if not isinstance(answer, list) or len(answer) != 1:
        raise BadRecordError(f"{where} must be one message of the assistant")
    last = check_messages([*prompt, *answer], where, None, prompt.tools, parallel)[-1]
    if last["role"] != "assistant":
        raise BadRecordError(f"{where} must be a message of the assistant")
    return {key: value for key, value in last.items() if key != "weight"}


def _common(answers: list[Any], where: str) -> tuple[Any, list[Any]]:
    better, worse = answers
    if not isinstance(better, list) or not isinstance(worse, list):
        raise BadRecordError(f"{where}: there is no prompt")
    count = 0
    while count < min(len(better), len(worse)) and better[count] == worse[count]:
        count += 1
    return better[:count], [better[count:], worse[count:]]


def _task(row: dict[str, Any], where: str, grader: Grader | None) -> Task:
    name = "messages" if "messages" in row else "prompt"
    asked = _Asked(_listed(row.get(name)), row.get("tools"), row.get("parallel_tool_calls"))
    item = {key: value for key, value in row.items() if key not in (name, *TOOLS)}
    if isinstance(asked.messages, list) and _is_answered(asked.messages):
        raise BadRecordError(f"{where}: the last message must be of the user: the model answers it itself")
    found = Task(_prompt(asked, where), item)
    if grader is not None:
        try:
            check_fields(grader, item)
        except RecipeError as error:
            raise BadRecordError(f"{where}: {error}") from error
    return found


def _is_answered(messages: list[Any]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def _listed(value: Any) -> Any:
    """Return a list or an object that is stored as JSON text; other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return None if value != value else value
