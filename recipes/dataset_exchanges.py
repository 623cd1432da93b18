"""Turn the rows of a table into conversations.

Rows hold whole conversations, or one exchange each. What a row says beside them counts too: its system
prompt, and whether it is to be learnt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from typing import Any

from chat_messages import BadRecordError, Conversation, Message, is_empty, is_marked_to_learn
from conversations import BadRecords
from dataset_columns import Columns
from dataset_rows import Table
from text_files import parse_json

_PLAIN = (str, int, float, Decimal, date, time)
_KINDS = {dict: "object", bool: "boolean"}
_LIST_IN_PYTHON = re.compile(r"\[\s*\{\s*['\"](role|from|type)['\"]\s*:")


@dataclass(frozen=True)
class Tools:
    """The values of a row for the tools of its conversation, not yet checked."""

    listed: Any = None
    parallel: Any = None


@dataclass
class Group:
    """The exchanges of one conversation, in the order of the file."""

    entries: list[tuple[float, str, list[Message]]] = field(default_factory=list)
    systems: dict[str, str] = field(default_factory=dict)
    """The system prompts of its rows, with the place of each."""
    owners: dict[str, Any] = field(default_factory=dict)
    """The customer whose conversation it is, by column."""
    is_bad: bool = False
    """Whether one of its rows cannot be used: without it the others are not what was said."""


def read_conversations(
    table: Table, columns: Columns, system_prompt: str | None, bad: BadRecords
) -> Iterator[tuple[str, Conversation]]:
    """Yield the conversations that can be learnt, with their places; add each unusable one to `bad`."""
    drafts = _grouped if columns["conversation"] is not None else _by_row
    for where, draft, tools in drafts(table, columns, bad):
        messages = bad.check(draft, where, tools.listed, tools.parallel)
        if messages is None:
            continue
        if system_prompt:
            turns = messages[1:] if messages[0]["role"] == "system" else messages
            messages = Conversation([{"role": "system", "content": system_prompt}, *turns], messages.tools)
        yield where, messages


def _by_row(table: Table, columns: Columns, bad: BadRecords) -> Iterator[tuple[str, Any, Tools]]:
    for where, row in table.rows(bad):
        try:
            columns.check_unused(row, where)
            messages = _messages(row, columns, where)
            place = f"{where}: column {columns['messages']!r}" if columns["messages"] else where
            yield place, _with_system(messages, _system(row, columns, where), where), _tools(row, columns)
        except BadRecordError as error:
            bad.add(error)


def _tools(row: dict[str, Any], columns: Columns) -> Tools:
    found = [row.get(column) if (column := columns[purpose]) else None for purpose in ("tools", "parallel")]
    return Tools(*(None if is_empty(each) and each is not False else each for each in found))


def _grouped(table: Table, columns: Columns, bad: BadRecords) -> Iterator[tuple[str, Any, Tools]]:
    """Collect the exchanges of each conversation, in order of the sequence column."""
    groups: dict[str, Group] = {}
    for where, row in table.rows(bad):
        group = None
        try:
            columns.check_unused(row, where)
            group = groups.setdefault(_conversation_id(row, columns, where), Group())
            _check_owner(group, row, columns, where)
            place = _sequence(row, columns, where, len(group.entries))
            group.entries.append((place, where, _messages(row, columns, where)))
            if system := _system(row, columns, where):
                group.systems.setdefault(system, where)
        except BadRecordError as error:
            bad.add(error)
            if group is not None:
                group.is_bad = True
    for name, group in groups.items():
        try:
            if group.is_bad:
                raise BadRecordError(f"conversation {name!r:.80}: one of its rows cannot be used")
            yield *_joined(group, columns), Tools()
        except BadRecordError as error:
            bad.add(error)


def _check_owner(group: Group, row: dict[str, Any], columns: Columns, where: str) -> None:
    """Refuse a row of another customer: words of one would become the context of another's."""
    for column in columns.owners:
        found = row.get(column)
        if not is_empty(found) and group.owners.setdefault(column, found) != found:
            raise BadRecordError(
                f"{where}: the conversation has another {column!r} in an earlier row; ids of conversations"
                " must differ between customers"
            )


def _joined(group: Group, columns: Columns) -> tuple[str, list[Message]]:
    entries = sorted(group.entries, key=lambda entry: entry[0])
    for (place, before, _), (following, where, _) in zip(entries, entries[1:], strict=False):
        if place == following:
            text = (
                f"{where}: has the same {columns['sequence']!r} and conversation as {before.split(': ')[-1]}"
            )
            raise BadRecordError(text)
    if len(group.systems) > 1:
        _, where = list(group.systems.items())[1]
        raise BadRecordError(f"{where}: the conversation has another {columns['system']!r} in an earlier row")
    where = entries[0][1]
    messages = [message for _, _, part in entries for message in part]
    return where, _with_system(messages, next(iter(group.systems), ""), where)


def _conversation_id(row: dict[str, Any], columns: Columns, where: str) -> str:
    column = str(columns["conversation"])
    found = _text(row, column, where).strip()
    if not found:
        raise BadRecordError(f"{where}: no conversation id in column {column!r}")
    return found


def _sequence(row: dict[str, Any], columns: Columns, where: str, otherwise: int) -> float:
    column = columns["sequence"]
    if column is None:
        return otherwise
    text = _text(row, column, where)
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if found != found:
        raise BadRecordError(f"{where}: column {column!r} is {text!r:.80}, a number is needed")
    return found


def _messages(row: dict[str, Any], columns: Columns, where: str) -> Any:
    """Return the messages of a row, not yet checked; without weight where the row is marked so."""
    if (whole := columns["messages"]) is not None:
        messages = _listed(row.get(whole))
    else:
        messages = _turns(row, str(columns["user"]), "user", where)
        if (column := columns["input"]) is not None and (more := _text(row, column, where).strip()):
            if len(messages) != 1 or not isinstance(messages[0].get("content"), str):
                raise BadRecordError(f"{where}: column {column!r} cannot follow a list of messages")
            messages[0]["content"] = f"{messages[0]['content'].strip()}\n\n{more}".strip()
        messages = [_unlearnt(message) for message in messages]  # answers in a prompt are context
        messages += _turns(row, str(columns["assistant"]), "assistant", where)
    marks = [is_marked_to_learn(row.get(name), f"{where}: column {name!r}") for name in columns.marks]
    is_unlearnt = False in marks and isinstance(messages, list)
    return [_unlearnt(each) for each in messages] if is_unlearnt else messages


def _unlearnt(message: Any) -> Any:
    return {**message, "weight": 0} if isinstance(message, dict) else message


def _listed(value: Any) -> Any:
    """Return a list of messages that is stored as JSON text; other values unchanged."""
    if isinstance(value, str):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _turns(row: dict[str, Any], column: str, role: str, where: str) -> list[Message]:
    """Return the messages that a column holds: a text, parts of one, or a list of messages."""
    value = row.get(column)
    if isinstance(value, str) and _LIST_IN_PYTHON.match(value.lstrip()):
        value = _listed(value)
        if isinstance(value, str):
            text = "holds a list of messages as text that is no JSON; write it as JSON"
            raise BadRecordError(f"{where}: column {column!r} {text}")
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        if all("role" in each or "from" in each for each in value):
            return value
        if all("type" in each for each in value):
            return [{"role": role, "content": value}]
    return [{"role": role, "content": _text(row, column, where)}]


def _system(row: dict[str, Any], columns: Columns, where: str) -> str:
    column = columns["system"]
    return _text(row, column, where).strip() if column is not None else ""


def _with_system(messages: Any, system: str, where: str) -> Any:
    """Put the system prompt first, unless the messages have it already."""
    if not system or not isinstance(messages, list):
        return messages
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    if "system" not in (first.get("role"), first.get("from")):
        return [{"role": "system", "content": system}, *messages]
    own = first.get("content", first.get("value"))
    if not isinstance(own, str) or own.strip() != system:
        raise BadRecordError(f"{where}: the system message differs from the column of system prompts")
    return messages


def _text(row: dict[str, Any], column: str, where: str) -> str:
    """Return the text of a cell; "" for null and NaN. Raises BadRecordError for what is no text."""
    value = row.get(column)
    if value is None or value != value:
        return ""
    is_infinite = isinstance(value, float | Decimal) and abs(value) == float("inf")
    if isinstance(value, bool) or is_infinite or not isinstance(value, _PLAIN):
        kind = "infinite number" if is_infinite else _KINDS.get(type(value), type(value).__name__)
        raise BadRecordError(f"{where}: column {column!r} holds a value of the type {kind}; text is needed")
    return str(value)
