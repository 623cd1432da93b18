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
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO

from conversations import BadRecords, as_line, atomic_text, each_conversation
from method_rows import METHODS, SUPERVISED, read_records
from recipe_errors import RecipeError, exit_code, note

DIGEST_BYTES = 16


class SpooledLines:
    """Lines in an unnamed file: only their places are in memory."""

    def __init__(self, file: IO[bytes], lines: Iterable[str]) -> None:
        self._file = file
        self._ends = array("Q", [0])
        for line in lines:
            self._ends.append(self._ends[-1] + file.write(f"{line}\n".encode()))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        start, end = self._ends[index : index + 2]
        self._file.seek(start)
        return self._file.read(end - start)


@contextmanager
def spooled(lines: Iterable[str], folder: Path) -> Iterator[SpooledLines]:
    """Yield the lines; the file is gone at the end, however the process ends."""
    with tempfile.TemporaryFile(dir=folder, prefix=".split-") as file:
        yield SpooledLines(file, lines)


def split(count: int, ratio: float, rand_sort: bool, seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the places of the first `ratio` of the conversations for training and of the rest for test;
    neither is empty."""
    if count < 2:
        raise RecipeError(
            "only one conversation: a split needs at least two; add data, or train on the"
            " unsplit file and evaluate on other data"
        )
    ordered = array("Q", range(count))
    if rand_sort:
        random.Random(seed).shuffle(ordered)
    cut = min(max(round(count * ratio), 1), count - 1)
    return ordered[:cut], ordered[cut:]


def without_copies(lines: SpooledLines, test: Sequence[int], train: Sequence[int]) -> Sequence[int]:
    """Return the test conversations that are not, word for word, in the training part as well."""
    known = {_digest(lines[place]) for place in test}
    copies = {digest for place in train if (digest := _digest(lines[place])) in known}
    return [place for place in test if _digest(lines[place]) not in copies]


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=DIGEST_BYTES).digest()


def _lines(args: argparse.Namespace, bad: BadRecords) -> Iterator[str]:
    """Yield the lines of the conversations, or of the records of another method."""
    if args.method == SUPERVISED:
        return map(as_line, each_conversation(args.input, bad))
    return (record.as_line() for record in read_records(args.input, args.method))


def run(args: argparse.Namespace) -> int:
    if not 0 < args.ratio < 1:
        raise RecipeError(f"--ratio {args.ratio}: must lie between 0 and 1, for example 0.9")
    bad = BadRecords(skip=args.skip_bad)
    with spooled(_lines(args, bad), args.input.parent) as lines:
        train, test = split(len(lines), args.ratio, args.rand_sort, args.seed)
        kept = without_copies(lines, test, train)
        if not kept:
            raise RecipeError(f"{args.input}: every test conversation is in the training part as well")
        for name, part in (("train", train), ("test", kept)):
            target = args.input.with_name(f"{args.input.stem}_{name}.jsonl")
            with atomic_text(target) as file:
                file.writelines(lines[place].decode() for place in part)
            note(f"{target}: {len(part)} conversations")
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
