#!/usr/bin/env python3
"""Say how a data set would be trained on, before anything is trained: a JSON object on stdout.

What each column is for, roles, counts, what is left out and why, personal data, and conversations of the
evaluation that are in the training data. Rows are read one by one. It needs no model (`token_report.py`
counts tokens), writes nothing, and must not choose settings of a training.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chat_messages import BadRecordError, Conversation
from conversations import BadRecords, as_line
from dataset_columns import Columns, add_column_options, choose_columns, named_columns
from dataset_exchanges import read_conversations
from dataset_overlap import Known, Overlap
from dataset_rows import FORMATS, Table, open_table, place_in
from graders import read_grader
from method_rows import METHODS, SUPERVISED, columns_used, read_rows
from personal_data import PersonalData
from reading_progress import Progress
from recipe_errors import RecipeError, exit_code
from tool_calls import texts_of

MOST_GROUPS, MOST_PLACES = 50, 5
ONE_CONVERSATION = (
    "there is one conversation, and a tenth is held out for the evaluation: add some, or name a file to"
    " evaluate on"
)
MARKED = "marked as not to be learnt"
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass
class Group:
    """Records that are left out for the same reason, or of which each is an error."""

    reason: str
    """The reason of the first."""
    count: int = 0
    places: list[str] = field(default_factory=list)
    is_error: bool = True

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.places) < MOST_PLACES:
            self.places.append(place)


class GroupedRecords(BadRecords):
    """Bad records and those left out, grouped by their reasons."""

    def __init__(self, path: Path) -> None:
        super().__init__(skip=True)
        self.path = path
        self.groups: dict[str, Group] = {}

    def add(self, error: BadRecordError) -> None:
        super().add(error)
        where, reason = self._parted(str(error))
        self._group(_VARIABLE.sub("*", reason), reason, is_error=True).add(where)

    def leave_out(self, where: str) -> None:
        super().leave_out(where)
        self._group(MARKED, MARKED, is_error=False).add(place_in(where, self.path))

    def _parted(self, text: str) -> tuple[str, str]:
        place, found, reason = text.removeprefix(f"{self.path}: ").partition(": ")
        return (place, reason) if found else ("", place)

    def _group(self, key: str, reason: str, *, is_error: bool) -> Group:
        if key not in self.groups and len(self.groups) >= MOST_GROUPS:
            key = reason = "other reasons"
        return self.groups.setdefault(key, Group(reason, is_error=is_error))


@dataclass
class DataReport:
    """The meaning of one file: columns, counts, and reasons."""

    file: str
    format: str = ""
    rows: int = 0
    conversations: int = 0
    bytes: int = 0
    longest_bytes: int = 0
    """The longest conversation as JSON, without its line end."""
    copies: int = 0
    """Conversations that are in the file already."""
    columns: list[dict[str, str]] = field(default_factory=list)
    roles: dict[str, int] = field(default_factory=dict)
    conversations_with_tools: int = 0
    tool_calls: int = 0
    notes: list[str] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    personal_data: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the file as a whole cannot be used."""


def read(path: Path, args: argparse.Namespace, use: Known | Overlap) -> DataReport:
    """Read one file, and pass its conversations on; errors are in the report."""
    report, bad = DataReport(path.name), GroupedRecords(path)
    personal, roles = PersonalData(), Counter[str]()
    try:
        table = open_table(path, args.format, skip_bad=True)
        report.format, report.rows = args.format or FORMATS[path.suffix.lower()], table.count
        source = _source(table, args, bad)
        progress = Progress(path.name, table.count)
        for where, messages, line in source.rows:
            place = place_in(where, path)
            size = len(line.encode())
            report.bytes, report.longest_bytes = report.bytes + size + 1, max(report.longest_bytes, size)
            roles.update(message["role"] for message in messages)
            personal.add((text for message in messages for text in texts_of(message)), place)
            report.conversations_with_tools += bool(messages.tools)
            report.tool_calls += sum(len(message.get("tool_calls", ())) for message in messages)
            use.add(messages, place)
            report.conversations += 1
            progress.tell(report.conversations)
        report.columns, remarks = source.columns()
        report.notes = [*remarks, *_remarks(bad)]
        if not report.conversations and not bad.count:
            raise RecipeError(f"{path}: there is no conversation to learn in it")
    except (RecipeError, OSError) as error:
        report.error = str(error).replace(f"{path}: ", "")
    report.roles = dict(roles)
    report.groups = [asdict(group) for group in bad.groups.values()]
    report.personal_data = {kind: asdict(found) for kind, found in personal.found.items()}
    return report


@dataclass
class Source:
    """The records of a file, each with place, conversation and line; and what its columns are for."""

    rows: Iterator[tuple[str, Conversation, str]]
    columns: Callable[[], tuple[list[dict[str, str]], list[str]]]


def _source(table: Table, args: argparse.Namespace, bad: BadRecords) -> Source:
    if args.method != SUPERVISED:
        return _records(table, args, bad)
    columns = choose_columns(table.columns, named_columns(args), args.ignore_column)
    found = read_conversations(table, columns, None, bad)
    return Source(
        ((where, messages, as_line(messages)) for where, messages in found),
        lambda: (_columns(table, columns, args.ignore_column), columns.remarks(args.ignore_column)[1:]),
    )


def _records(table: Table, args: argparse.Namespace, bad: BadRecords) -> Source:
    """Return preferences or tasks. The conversation of a preference has the preferred answer."""
    grader = read_grader(args.grader) if args.grader else None
    used, unused = columns_used(args.method, table.columns)
    uses = {**dict.fromkeys(used, args.method), **dict.fromkeys(unused, "not used")}
    listed = [{"name": name[:200], "use": uses[name]} for name in table.columns[:200]]
    found = read_rows(table, args.method, bad, grader)
    return Source(
        ((where, record.conversation, record.as_line()) for where, record in found), lambda: (listed, [])
    )


def _columns(table: Table, columns: Columns, ignored: list[str]) -> list[dict[str, str]]:
    """Return each column with what it is for."""
    uses = {name: purpose for purpose, name in columns.chosen.items() if name}
    uses |= dict.fromkeys(columns.marks, "says whether a row is learnt")
    uses |= dict.fromkeys(ignored, "ignored as asked")
    unused = {name: "not used" if name in columns.held else "empty" for name in columns.unused}
    found = {**unused, **uses}
    return [{"name": name[:200], "use": found.get(name, "not used")} for name in table.columns[:200]]


def _remarks(bad: BadRecords) -> list[str]:
    return [f"{times} {text}" for text, times in bad.remarks.items() if not text.endswith("left out")]


def run(args: argparse.Namespace) -> int:
    known = Known()
    data = read(args.input, args, known)
    data.copies = known.copies
    has_errors = data.error or any(group["is_error"] for group in data.groups)
    if data.conversations == 1 and not has_errors and not args.validation:
        data.error = ONE_CONVERSATION
    document: dict[str, Any] = {"training": asdict(data), "validation": None, "overlap": None}
    if args.validation:
        overlap = Overlap(known)
        args.format = None
        document["validation"] = asdict(read(args.validation, args, overlap))
        document["overlap"] = {
            "conversations": overlap.same,
            "places": overlap.places,
            "same_question": overlap.same_question,
            "lines": overlap.lines(),
        }
    json.dump(document, sys.stdout)
    print()
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Report what of a data set would be trained on, as JSON.",
        epilog="example: python3 dataset_report.py chats.csv --validation held_out.jsonl",
    )
    parser.add_argument("input", type=Path, help="Parquet, CSV, JSON or JSONL")
    parser.add_argument("--validation", type=Path, help="file to evaluate on, compared with the first one")
    parser.add_argument("--format", choices=list(dict.fromkeys(FORMATS.values())), help="of the first file")
    parser.add_argument("--method", choices=METHODS, default=SUPERVISED, help="what is trained on the rows")
    parser.add_argument("--grader", type=Path, help="JSON file; its fields must be in each row")
    add_column_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
