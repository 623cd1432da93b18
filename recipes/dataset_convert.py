#!/usr/bin/env python3
"""Turn Parquet, CSV, JSON or JSONL into the conversations file that the other recipes read.

Rows may hold whole conversations (`messages` or `conversations`), or one exchange each: a user
column and an assistant column, optionally grouped by a conversation column and ordered by a
sequence column into many turns. Columns are given by options or guessed from their names; the
choice is reported on stderr. It must not tokenise, filter by content, or split.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from conversations import (
    BadRecordError,
    BadRecords,
    Conversation,
    Message,
    check_conversation,
    write_conversations,
)
from dataset_rows import FORMATS, Row, read_rows
from recipe_errors import RecipeError, exit_code, note

# Column names seen in public data sets, best guess first.
GUESSES = {
    "messages": ("messages", "conversations", "conversation", "dialog", "dialogue"),
    "user": (
        *("user", "instruction", "question", "prompt", "query", "customer", "client"),
        *("human", "input", "text", "rol1", "utterance"),
    ),
    "assistant": (
        *("assistant", "response", "answer", "output", "completion", "advisor", "agent"),
        *("bot", "reply", "rol2", "category", "label", "intent", "target"),
    ),
    "system": ("system", "system_prompt"),
    "conversation": (
        *("conversation_id", "id_conversation", "dialogue_id", "dialog_id", "session_id"),
        *("thread_id", "chat_id"),
    ),
    "sequence": ("sequence", "turn", "turn_id", "turn_index", "turn_number", "step", "position"),
}
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}

Columns = dict[str, str | None]
Draft = tuple[str, Any]  # where it was found, messages not yet checked


def choose_columns(available: list[str], named: Columns) -> Columns:
    """Return the column for each purpose: as given by option, else guessed; None where there is none."""
    for purpose, column in named.items():
        if column is not None and column not in available:
            raise RecipeError(
                f"no column {column!r} (asked for by --{purpose}-column);"
                f" the columns are: {', '.join(available)}"
            )
    exchange_named = named["user"] is not None or named["assistant"] is not None
    chosen = dict(named)
    for purpose in GUESSES:
        if purpose == "messages" and exchange_named:
            continue
        taken = {column for column in chosen.values() if column is not None}
        chosen[purpose] = chosen[purpose] or _guess(purpose, available, taken)
        if chosen["messages"] is not None:
            return {**dict.fromkeys(GUESSES, None), "messages": chosen["messages"]}
    for purpose in ("user", "assistant"):
        if chosen[purpose] is None:
            raise RecipeError(
                f"cannot tell which column holds the {purpose}'s words; name it with"
                f" --{purpose}-column; the columns are: {', '.join(available)}"
            )
    return chosen


def _guess(purpose: str, available: list[str], taken: set[str]) -> str | None:
    free = {column.lower(): column for column in reversed(available) if column not in taken}
    return next((free[guess] for guess in GUESSES[purpose] if guess in free), None)


def draft_conversations(rows: Iterable[Row], columns: Columns, bad: BadRecords) -> Iterator[Draft]:
    """Return messages as the rows have them, before any check."""
    if columns["messages"] is not None:
        for where, row in rows:
            yield where, _listed(row.get(columns["messages"]))
    elif columns["conversation"] is not None:
        yield from _grouped(rows, columns, bad)
    else:
        for where, row in rows:
            yield where, _with_system(row, columns, _exchange(row, columns))


def _listed(value: Any) -> Any:
    """Return a list of messages, also when stored as JSON text or with ShareGPT's from/value keys."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, list):
        return None
    return [_message(message) if isinstance(message, dict) else message for message in value]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    return {"role": SHAREGPT_ROLES.get(str(role), role), "content": content}


def _exchange(row: dict[str, Any], columns: Columns) -> list[Message]:
    return [{"role": role, "content": _text(row.get(str(columns[role])))} for role in ("user", "assistant")]


def _with_system(row: dict[str, Any], columns: Columns, messages: list[Message]) -> list[Message]:
    system = _text(row.get(columns["system"])) if columns["system"] is not None else ""
    return [{"role": "system", "content": system}, *messages] if system.strip() else messages


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _grouped(rows: Iterable[Row], columns: Columns, bad: BadRecords) -> Iterator[Draft]:
    """Collect the exchanges of each conversation, in order of the sequence column."""
    groups: dict[str, list[tuple[float, str, dict[str, Any]]]] = {}
    for where, row in rows:
        group = groups.setdefault(_text(row.get(str(columns["conversation"]))), [])
        try:
            group.append((_sequence(row, columns, where, len(group)), where, row))
        except BadRecordError as error:
            bad.add(error)
    for group in groups.values():
        group.sort(key=lambda entry: entry[0])
        turns = [message for _, _, row in group for message in _exchange(row, columns)]
        if group:
            _, where, first = group[0]
            yield where, _with_system(first, columns, turns)


def _sequence(row: dict[str, Any], columns: Columns, where: str, otherwise: int) -> float:
    if columns["sequence"] is None:
        return otherwise
    value = row.get(columns["sequence"])
    try:
        return float(_text(value))
    except ValueError:
        column = columns["sequence"]
        raise BadRecordError(f"{where}: {column!r} is {value!r}, a number is needed") from None


def checked(drafts: Iterable[Draft], system_prompt: str | None, bad: BadRecords) -> Iterator[Conversation]:
    """Yield complete conversations; add each unusable one to `bad`."""
    for where, draft in drafts:
        try:
            messages = check_conversation(draft, where)
        except BadRecordError as error:
            bad.add(error)
            continue
        if system_prompt:
            turns = messages[1:] if messages[0]["role"] == "system" else messages
            messages = [{"role": "system", "content": system_prompt}, *turns]
        yield messages


def run(args: argparse.Namespace) -> int:
    bad = BadRecords(skip=args.skip_bad)
    available, rows = read_rows(args.input, args.format, bad)
    columns = choose_columns(available, {name: getattr(args, f"{name}_column") for name in GUESSES})
    used = ", ".join(f"{purpose}={name!r}" for purpose, name in columns.items() if name)
    note(f"{args.input}: {len(rows)} rows; using columns {used}")
    found = list(checked(draft_conversations(rows, columns, bad), args.system_prompt, bad))
    if not found:
        raise RecipeError(f"{args.input}: no usable conversation, first: {bad.examples[0]}")
    output = args.output or args.input.with_suffix(".jsonl")
    if output.resolve() == args.input.resolve():
        raise RecipeError(f"{output}: would overwrite the input; name another with --output")
    turns = sum(message["role"] == "assistant" for messages in found for message in messages)
    write_conversations(output, found)
    note(f"{output}: {len(found)} conversations with {turns} assistant messages")
    if bad.count:
        note(f"skipped {bad.count} bad records, the first: {'; '.join(bad.examples)}")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Convert Parquet, CSV, JSON or JSONL into a JSONL file of conversations.",
        epilog="examples:\n"
        "  python3 dataset_convert.py questions.csv --output chats.jsonl\n"
        "  python3 dataset_convert.py turns.json --conversation-column id_conversation \\\n"
        "      --sequence-column sequence --user-column rol1 --assistant-column rol2",
    )
    parser.add_argument("input", type=Path, help="file to read")
    parser.add_argument("--output", type=Path, help="default: the input's name with .jsonl")
    parser.add_argument("--format", choices=list(FORMATS.values()), help="default: from the file's ending")
    parser.add_argument("--system-prompt", help="put this system message before every conversation")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad records out, count them")
    for purpose, guesses in GUESSES.items():
        parser.add_argument(
            f"--{purpose}-column",
            metavar="NAME",
            help=f"default: guessed ({', '.join(guesses[:4])}, ...)",
        )
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
