"""Choose what each column of a table is for: as given by options, else guessed from the names.

Where several columns may be meant, none is guessed. A column that would change what is learnt, and is not
used, is an error where it holds something.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chat_messages import BadRecordError, is_empty
from recipe_errors import RecipeError

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
    "input": ("input",),
    "system": ("system", "system_prompt"),
    "tools": ("tools",),
    "parallel": ("parallel_tool_calls",),
    "conversation": (
        *("conversation_id", "id_conversation", "dialogue_id", "dialog_id", "session_id"),
        *("thread_id", "chat_id"),
    ),
    "sequence": ("sequence", "turn", "turn_id", "turn_index", "turn_number", "step", "position"),
}
"""Column names seen in public data sets."""
CLASSES = frozenset({"category", "label", "intent", "target"})
"""Answers only where no other column is one."""
MARK_COLUMNS = ("weight", "trainable", "train", "loss_mask")
"""Columns that say whether the row is learnt."""
CONTEXT = frozenset(
    {"input", "context", "history", "passage", "document", "documents", "background", "knowledge"}
)
"""Columns that may be a part of the question."""
OWNERS = frozenset(
    f"{who}{suffix}"
    for who in ("customer", "client", "user", "account", "person", "member", "patient", "contact", "caller")
    for suffix in ("", "_id", "id", "_name", "_number", "_uuid")
) | {"email", "email_address", "phone", "phone_number", "tenant_id", "subscriber_id"}
"""Columns that name the customer of a conversation, who is the same in all its rows."""
MOST_LISTED, LONGEST_NAME = 20, 64
NOT_TEXT = frozenset(
    {"tools", "functions", "image", "images", "audio", "audios", "video", "videos", "reasoning_content"}
)
"""Columns that a text model cannot learn, or not from rows of one exchange."""


@dataclass
class Columns:
    """The column for each purpose, and those that are used for none."""

    chosen: dict[str, str | None]
    marks: list[str]
    unused: list[str]
    held: set[str] = field(default_factory=set)
    """Unused columns in which a row holds something."""

    def __getitem__(self, purpose: str) -> str | None:
        return self.chosen[purpose]

    @property
    def owners(self) -> list[str]:
        return [column for column in self.unused if column.lower() in OWNERS]

    def check_unused(self, row: dict[str, Any], where: str) -> None:
        """Raise RecipeError for content that would be lost, BadRecordError for what cannot be learnt."""
        for column in self.unused:
            if is_empty(row.get(column)):
                continue
            if column.lower() in NOT_TEXT:
                text = f"{where}: column {column!r} is not empty, and cannot be learnt; remove it"
                raise BadRecordError(text)
            if column.lower() in CONTEXT:
                raise RecipeError(
                    f"{where}: column {column!r} holds something that would not be learnt; put it into the"
                    " question's column, or remove the column",
                    f"or pass --input-column {column!r} to put it after the question, or --ignore-column"
                    f" {column!r}",
                )
            self.held.add(column)

    def remarks(self, ignored: Iterable[str]) -> list[str]:
        """Return what is used and what is not, as sentences."""
        used = ", ".join(f"{purpose}={name!r}" for purpose, name in self.chosen.items() if name)
        found = [f"using columns {used}"]
        if self.marks:
            found.append(f"rows are learnt as these columns say: {', '.join(map(repr, self.marks))}")
        if unused := [*ignored, *(column for column in self.unused if column in self.held)]:
            found.append(f"columns not used: {', '.join(map(repr, unused))}")
        return found


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a script that name columns."""
    for purpose, guesses in GUESSES.items():
        parser.add_argument(
            f"--{purpose}-column",
            metavar="NAME",
            help=f"default: guessed ({', '.join(guesses[:4])}{', ...' if len(guesses) > 4 else ''})",
        )
    parser.add_argument(
        "--ignore-column",
        metavar="NAME",
        action="append",
        default=[],
        help="do not use this column, whatever it holds; may be repeated",
    )


def named_columns(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the column that an option names, for each purpose."""
    return {purpose: getattr(args, f"{purpose}_column") for purpose in GUESSES}


def choose_columns(available: list[str], named: dict[str, str | None], ignored: list[str]) -> Columns:
    """Return the column for each purpose: as given by option, else guessed; None where there is none."""
    for option, column in [*named.items(), *(("ignore", column) for column in ignored)]:
        if column is not None and column not in available:
            raise RecipeError(
                f"no column {column!r}, which --{option}-column names; the columns are: {_listed(available)}"
            )
    free = [column for column in available if column not in ignored]
    marks = [column for column in free if column.lower() in MARK_COLUMNS and column not in named.values()]
    chosen = _chosen([column for column in free if column not in marks], named)
    used = {*marks, *(column for column in chosen.values() if column is not None)}
    return Columns(chosen, marks, [column for column in free if column not in used])


def _chosen(free: list[str], named: dict[str, str | None]) -> dict[str, str | None]:
    chosen = dict(named)
    has_exchange = named["user"] is not None or named["assistant"] is not None
    if not has_exchange:
        chosen["messages"] = named["messages"] or _guess("messages", free, chosen)
    if chosen["messages"] is not None:
        if other := next((name for name in ("conversation", "sequence", "input") if named[name]), ""):
            raise RecipeError(f"--{other}-column: rows hold whole conversations; name --user-column as well")
        beside = {name: named[name] or _guess(name, free, chosen) for name in ("system", "tools", "parallel")}
        return {**dict.fromkeys(GUESSES, None), "messages": chosen["messages"], **beside}
    if other := next((name for name in ("tools", "parallel") if named[name]), ""):
        raise RecipeError(f"--{other}-column: only rows that hold whole conversations have tools")
    by_name = {column.lower(): column for column in free}
    if not has_exchange and {"prompt", "completion"} <= set(by_name):
        chosen["user"], chosen["assistant"] = by_name["prompt"], by_name["completion"]
    question = chosen["user"] or by_name.get("instruction", "")
    if question.lower() == "instruction":  # Alpaca's columns: instruction, input, output
        chosen["input"] = named["input"] or _guess("input", free, chosen)
    for purpose in ("user", "assistant"):
        chosen[purpose] = chosen[purpose] or _guess(purpose, free, chosen)
        if chosen[purpose] is None:
            raise RecipeError(
                f"cannot tell which column holds the {purpose}'s words; the columns are: {_listed(free)}."
                " Name them `prompt` and `completion`, or have one column `messages`",
                f"or name it with --{purpose}-column",
            )
    for purpose in ("system", "conversation"):
        chosen[purpose] = chosen[purpose] or _guess(purpose, free, chosen)
    if chosen["conversation"] is not None:
        chosen["sequence"] = chosen["sequence"] or _guess("sequence", free, chosen)
    elif chosen["sequence"] is not None:
        raise RecipeError(
            "--sequence-column orders the rows of a conversation: name --conversation-column too"
        )
    return chosen


def _guess(purpose: str, free: list[str], chosen: dict[str, str | None]) -> str | None:
    """Return the column whose name fits. Raises RecipeError where several do."""
    taken = set(chosen.values())
    fitting = [column for column in free if column not in taken and column.lower() in GUESSES[purpose]]
    words = [column for column in fitting if column.lower() not in CLASSES]
    fitting = words or fitting
    if len(fitting) > 1:
        what = f"the {purpose}'s words" if purpose in ("user", "assistant") else f"the {purpose}"
        raise RecipeError(
            f"more than one column may hold {what}: {_listed(fitting)}; rename or remove those that do not",
            f"or name it with --{purpose}-column",
        )
    return fitting[0] if fitting else None


def _listed(columns: list[str]) -> str:
    """Return the first of the names, which are the data's own and may be of any length and number."""
    more = f", and {len(columns) - MOST_LISTED} more" if len(columns) > MOST_LISTED else ""
    names = [f"{name[:LONGEST_NAME]}..." if name[LONGEST_NAME:] else name for name in columns[:MOST_LISTED]]
    return ", ".join(names) + more or "none"
