#!/usr/bin/env python3
"""Turn conversations into the token ids that fine-tuning reads.

The tokenizer is loaded once, then forked worker processes encode on all CPUs. Only the
assistant's messages get labels. A conversation longer than the context is cut or dropped, and
counted. With `--pack` many conversations share a row, which leaves hardly any padding.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import IO, overload

from chat_messages import Conversation
from conversations import BadRecords, each_conversation
from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import numpy

    from chat_tokens import IGNORED, ChatEncoder, load_tokenizer
    from tokenized_data import Example, pack, plain_row, write_rows

CHUNK = 64
"""Conversations that a process gets at a time."""
CHUNKS_AHEAD = 4
"""Chunks of each process that are under way or wait to be written."""
TOKEN_BYTES = 4


@dataclass
class Counts:
    """Counts of the conversations, written to stderr and into the file."""

    kept: int = 0
    truncated: int = 0
    dropped: int = 0
    without_labels: int = 0


class SpooledExamples(Sequence["Example"]):
    """Token ids and labels in an unnamed file: only their places are in memory."""

    def __init__(self, file: IO[bytes], examples: Iterable[Example]) -> None:
        self._file = file
        self._ends = array("Q", [0])
        for ids, labels in examples:
            for part in (ids, labels):
                file.write(numpy.asarray(part, numpy.int32).tobytes())
            self._ends.append(self._ends[-1] + len(ids))

    @property
    def tokens(self) -> int:
        return self._ends[-1]

    @property
    def lengths(self) -> Sequence[int]:
        return array("Q", (end - start for start, end in itertools.pairwise(self._ends)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        start, end = self._ends[index : index + 2]
        self._file.seek(2 * start * TOKEN_BYTES)
        both = numpy.frombuffer(self._file.read(2 * (end - start) * TOKEN_BYTES), numpy.int32)
        return both[: end - start], both[end - start :]


def fit(examples: Iterable[Example], context: int, too_long: str, counts: Counts) -> Iterator[Example]:
    """Cut or drop conversations longer than the context; leave out those without a label left."""
    for ids, labels in examples:
        if len(ids) > context and too_long == "drop":
            counts.dropped += 1
            continue
        if len(ids) > context:
            counts.truncated += 1
            ids, labels = ids[:context], labels[:context]
        if (numpy.asarray(labels) == IGNORED).all():
            counts.without_labels += 1
            continue
        counts.kept += 1
        yield ids, labels


def encode_all(
    encoder: ChatEncoder, conversations: Iterable[Conversation], workers: int
) -> Iterator[Example]:
    """Encode in parallel, in order; forked workers inherit the tokenizer, so it is loaded only once.

    Raises RecipeError when a worker died, as where memory is short. (`multiprocessing.Pool` would wait for it
    for ever.)
    """
    source = iter(conversations)
    first = list(itertools.islice(source, 2 * workers))
    if workers == 1 or len(first) < 2 * workers:
        yield from (_encode(encoder, messages) for messages in itertools.chain(first, source))
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per CPU is parallel enough
    forked = multiprocessing.get_context("fork")
    chunks = _chunks(itertools.chain(first, source))
    with ProcessPoolExecutor(workers, forked, _inherit, (encoder,)) as pool:
        under_way: deque[Future[list[Example]]] = deque()
        try:
            for chunk in chunks:
                under_way.append(pool.submit(_encode_inherited, chunk))
                if len(under_way) >= CHUNKS_AHEAD * workers:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        except BrokenProcessPool:
            raise RecipeError(
                f"one of {workers} processes died, perhaps for want of memory", "run again with --workers 1"
            ) from None


def _chunks(conversations: Iterator[Conversation]) -> Iterator[list[Conversation]]:
    while chunk := list(itertools.islice(conversations, CHUNK)):
        yield chunk


_inherited: list[ChatEncoder] = []


def _inherit(encoder: ChatEncoder) -> None:
    _inherited.append(encoder)


def _encode_inherited(chunk: list[Conversation]) -> list[Example]:
    return [_encode(_inherited[0], messages) for messages in chunk]


def _encode(encoder: ChatEncoder, messages: Conversation) -> Example:
    """Return arrays: lists of Python's integers would take ten times the memory."""
    ids, labels = encoder.encode(messages)
    return numpy.asarray(ids, numpy.int32), numpy.asarray(labels, numpy.int32)


def run(args: argparse.Namespace) -> int:
    if args.context < 8:
        raise RecipeError(f"--context {args.context}: too short; 512 to 8192 are usual")
    started = time.monotonic()
    bad = BadRecords(skip=args.skip_bad)
    tokenizer = load_tokenizer(args.model)
    workers = args.workers or len(os.sched_getaffinity(0))
    counts = Counts()
    output = args.output or args.input.with_suffix(".arrow")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=output.parent, prefix=".tokenize-") as file:
        encoded = encode_all(ChatEncoder(tokenizer), each_conversation(args.input, bad), workers)
        examples = SpooledExamples(file, fit(encoded, args.context, args.too_long, counts))
        if not len(examples):
            raise RecipeError(
                f"{args.input}: no conversation fits {args.context} tokens with an assistant message in it",
                "raise --context or pass --too-long truncate",
            )
        facts = {
            "model": args.model,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "context": args.context,
            "packed": args.pack,
            "conversations": counts.kept,
            "truncated": counts.truncated,
            "dropped": counts.dropped,
            "without_labels": counts.without_labels,
            "tokens": examples.tokens,
        }
        rows = pack(examples, args.context, examples.lengths) if args.pack else map(plain_row, examples)
        count = write_rows(output, rows, facts)
    report(output, args, counts, count, examples.tokens, time.monotonic() - started, bad)
    return 0


def report(
    output: Path,
    args: argparse.Namespace,
    counts: Counts,
    rows: int,
    tokens: int,
    seconds: float,
    bad: BadRecords,
) -> None:
    note(
        f"{output}: {counts.kept} conversations, {tokens} tokens in {rows}"
        f" {'packed ' if args.pack else ''}rows, {seconds:.1f} s"
    )
    note(
        f"longer than {args.context} tokens: {counts.truncated} truncated,"
        f" {counts.dropped} dropped; without an assistant's word left: {counts.without_labels}"
    )
    if bad.count:
        note(f"skipped {bad.count} bad records, the first: {bad.examples[0]}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Tokenise conversations for fine-tuning (input_ids, labels, attention_mask).",
        epilog="example: python3 dataset_tokenize.py chats_train.jsonl --model Qwen/Qwen3-8B --pack",
    )
    parser.add_argument("input", type=Path, help="JSONL file of conversations")
    parser.add_argument("--model", required=True, help="local folder or hub id")
    parser.add_argument("--output", type=Path, help="default: the input's name with .arrow")
    parser.add_argument("--context", type=int, default=1024, help="tokens per row (default 1024)")
    parser.add_argument(
        "--too-long",
        choices=("truncate", "drop"),
        default="truncate",
        help="what to do with a conversation longer than the context (default truncate)",
    )
    parser.add_argument("--pack", action="store_true", help="many conversations per row")
    parser.add_argument("--workers", type=int, help="processes (default: one per CPU)")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad records out, count them")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
