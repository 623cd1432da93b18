#!/usr/bin/env python3
"""Turn Parquet, CSV, JSON or JSONL into the conversations file that the other recipes read.

Rows may hold whole conversations (`messages` or `conversations`), or one exchange each: a user
column and an assistant column, optionally grouped by a conversation column and ordered by a
sequence column into many turns. Columns are given by options or guessed from their names; the
choice, and what is not used, is reported on stderr. With `--method` dpo or reinforcement, rows are
preferences or tasks. It must not tokenise, filter by content, or split.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chat_messages import Conversation, is_learnt
from conversations import BadRecords, write_conversations
from dataset_columns import add_column_options, choose_columns, named_columns
from dataset_exchanges import read_conversations
from dataset_overlap import Known, Overlap, read_known
from dataset_rows import FORMATS, Table, open_table, place_in
from graders import read_grader
from method_rows import (
    DPO,
    METHODS,
    SUPERVISED,
    Record,
    columns_used,
    known_records,
    read_rows,
    write_records,
)
from personal_data import PersonalData
from recipe_errors import RecipeError, exit_code, note
from tool_calls import texts_of


def run(args: argparse.Namespace) -> int:
    if args.check:
        return check(args)
    output = args.output or args.input.with_suffix(".jsonl")
    if output.resolve() == args.input.resolve():
        raise RecipeError(f"{output}: would overwrite the input", "name another with --output")
    bad = BadRecords(skip=args.skip_bad)
    report = convert(args, bad, output)
    for text in report.remarks:
        note(f"{args.input}: {text}")
    note(f"{output}: {report.conversations} conversations with {report.answers} assistant messages")
    return 0


def check(args: argparse.Namespace) -> int:
    """Read everything, and print on stdout what is wrong with it; write nothing."""
    bad = BadRecords(skip=True)
    found, errors = Report(), []
    try:
        found = convert(args, bad, None)
    except RecipeError as error:
        errors = [str(error)]
    errors = [*bad.examples, *errors]
    prefix = f"{args.input}: "
    document = {
        "conversations": found.conversations,
        "errors": [error.replace(prefix, "") for error in errors],
        "error_count": max(bad.count, len(errors)),
        "notes": [] if errors else found.remarks,
    }
    print(json.dumps(document))
    return 0


@dataclass
class Report:
    """The result of a conversion: rows read, used and left out."""

    conversations: int = 0
    answers: int = 0
    remarks: list[str] = field(default_factory=list)


def convert(args: argparse.Namespace, bad: BadRecords, output: Path | None) -> Report:
    """Read all conversations, and write them where there is an output."""
    table = open_table(args.input, args.format, skip_bad=bad.skip)
    if args.method != SUPERVISED:
        return convert_records(table, args, bad, output)
    columns = choose_columns(table.columns, named_columns(args), args.ignore_column)
    report, personal = Report(), PersonalData()
    overlap = Overlap(read_known(args.training) if args.training else Known())

    def counted() -> Iterator[Conversation]:
        for where, messages in read_conversations(table, columns, args.system_prompt, bad):
            report.conversations += 1
            report.answers += sum(map(is_learnt, messages))
            place = place_in(where, args.input)
            personal.add((text for message in messages for text in texts_of(message)), place)
            overlap.add(messages, place)
            yield messages
        if not report.conversations and (output or not bad.count):
            first = (
                f", the first: {bad.examples[0]}" if bad.examples else "; all are marked as not to be learnt"
            )
            raise RecipeError(f"{args.input}: no usable conversation{first}")
        require_no_personal_data(args, personal)

    if output is None:
        deque(counted(), maxlen=0)
    else:
        write_conversations(output, counted())
    report.remarks = [*columns.remarks(args.ignore_column), *bad.lines(), *personal.lines(), *overlap.lines()]
    return report


def convert_records(table: Table, args: argparse.Namespace, bad: BadRecords, output: Path | None) -> Report:
    """Read all preferences or tasks, and write them where there is an output."""
    report, personal = Report(), PersonalData()
    grader = read_grader(args.grader) if args.grader else None
    overlap = Overlap(known_records(args.training, args.method) if args.training else Known())

    def counted() -> Iterator[Record]:
        for where, record in read_rows(table, args.method, bad, grader):
            report.conversations += 1
            report.answers += args.method == DPO
            place = place_in(where, args.input)
            personal.add((text for message in record.messages for text in texts_of(message)), place)
            overlap.add(record.prompt, place)
            yield record
        if not report.conversations and (output or not bad.count):
            raise RecipeError(f"{args.input}: no usable record, the first: {bad.examples[0]}")
        require_no_personal_data(args, personal)

    if output is None:
        deque(counted(), maxlen=0)
    else:
        write_records(output, counted())
    used, unused = columns_used(args.method, table.columns)
    report.remarks = [f"using columns {', '.join(map(repr, used))}"]
    report.remarks += [f"columns not used: {', '.join(map(repr, unused))}"] if unused else []
    report.remarks += [*bad.lines(), *personal.lines(), *overlap.lines()]
    return report


def require_no_personal_data(args: argparse.Namespace, personal: PersonalData) -> None:
    if args.refuse_personal_data and personal.found:
        raise RecipeError(
            f"{args.input}: holds {'; '.join(personal.lines())}; remove it, and train again",
            "or leave out --refuse-personal-data",
        )


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
    formats = list(dict.fromkeys(FORMATS.values()))
    parser.add_argument("--format", choices=formats, help="default: from the file's ending")
    parser.add_argument("--system-prompt", help="put this system message before every conversation")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad records out, count them")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=SUPERVISED,
        help="what is trained on the rows (default supervised)",
    )
    parser.add_argument("--grader", type=Path, help="JSON file; its fields must be in each row")
    parser.add_argument(
        "--refuse-personal-data",
        action="store_true",
        help="fail where e-mail addresses, card numbers, IBANs or telephone numbers are found",
    )
    parser.add_argument(
        "--training",
        metavar="FILE",
        type=Path,
        help="the training data, where INPUT is to evaluate on: report what is in both",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; print errors and notes as JSON")
    add_column_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
