#!/usr/bin/env python3
"""Split a conversations file into a training and a test file beside it.

`chats.jsonl` becomes `chats_train.jsonl` and `chats_test.jsonl`. The split is by conversation, so
no conversation is in both files; a test conversation whose text is also in the training part
would make the model look better than it is, and is left out. It must not change the records themselves.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from conversations import BadRecords, read_conversations, write_conversations
from method_rows import METHODS, SUPERVISED, read_records, write_records
from recipe_errors import RecipeError, exit_code, note


def split(conversations: list[Any], ratio: float, rand_sort: bool, seed: int) -> tuple[list[Any], list[Any]]:
    """Return the first `ratio` of the conversations for training and the rest for test; neither is empty."""
    if len(conversations) < 2:
        raise RecipeError(
            "only one conversation: a split needs at least two; add data, or train on the"
            " unsplit file and evaluate on other data"
        )
    ordered = list(conversations)
    if rand_sort:
        random.Random(seed).shuffle(ordered)
    cut = min(max(round(len(ordered) * ratio), 1), len(ordered) - 1)
    return ordered[:cut], ordered[cut:]


def without_copies(test: list[Any], train: list[Any]) -> list[Any]:
    """Return the test conversations that are not, word for word, in the training part as well."""
    seen = {repr(messages) for messages in train}
    return [messages for messages in test if repr(messages) not in seen]


def run(args: argparse.Namespace) -> int:
    if not 0 < args.ratio < 1:
        raise RecipeError(f"--ratio {args.ratio}: must lie between 0 and 1, for example 0.9")
    bad = BadRecords(skip=args.skip_bad)
    if args.method == SUPERVISED:
        records, write = read_conversations(args.input, bad), write_conversations
    else:
        records, write = read_records(args.input, args.method), write_records
    train, test = split(records, args.ratio, args.rand_sort, args.seed)
    kept = without_copies(test, train)
    if not kept:
        raise RecipeError(f"{args.input}: every test conversation is in the training part as well")
    for name, part in (("train", train), ("test", kept)):
        target = args.input.with_name(f"{args.input.stem}_{name}.jsonl")
        note(f"{target}: {write(target, part)} conversations")
    if len(kept) < len(test):
        copies = len(test) - len(kept)
        note(f"left out {copies} test conversations that are, word for word, in the training part")
    if bad.count:
        note(f"skipped {bad.count} bad records, first: {bad.examples[0]}")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Split a conversations file into _train and _test files in the same folder.",
        epilog="example: python3 dataset_split.py data/chats.jsonl --ratio 0.9 --rand-sort",
    )
    parser.add_argument("input", type=Path, help="JSONL file made by dataset_convert.py")
    parser.add_argument("--ratio", type=float, default=0.9, help="share for training (default 0.9)")
    parser.add_argument(
        "--rand-sort",
        action="store_true",
        help="shuffle first; needed when the file is sorted, for example by topic",
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the shuffle (default 42)")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=SUPERVISED,
        help="what is trained on the file (default supervised)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave bad records out, count them")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
