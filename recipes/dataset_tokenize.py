#!/usr/bin/env python3
"""Turn conversations into the token ids that fine-tuning reads.

The tokenizer is loaded once, then forked worker processes encode on all CPUs. Only the
assistant's messages get labels. A conversation longer than the context is cut or dropped, and
counted. With `--pack` many conversations share a row, which leaves hardly any padding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from chat_messages import Conversation
from conversations import BadRecords, read_conversations
from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import numpy

    from chat_tokens import IGNORED, ChatEncoder, load_tokenizer
    from tokenized_data import Example, pack, plain_row, write_rows


@dataclass
class Counts:
    """Counts of the conversations, written to stderr and into the file."""

    kept: int = 0
    truncated: int = 0
    dropped: int = 0
    without_labels: int = 0


def fit(examples: Iterable[Example], context: int, too_long: str, counts: Counts) -> list[Example]:
    """Cut or drop conversations longer than the context; leave out those without a label left."""
    fitting: list[Example] = []
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
        fitting.append((ids, labels))
    return fitting


def encode_all(encoder: ChatEncoder, conversations: list[Conversation], workers: int) -> list[Example]:
    """Encode in parallel; forked workers inherit the tokenizer, so it is loaded only once.

    Raises RecipeError when a worker died, as where memory is short. (`multiprocessing.Pool` would wait for it
    for ever.)
    """
    if workers == 1 or len(conversations) < 2 * workers:
        return [_encode(encoder, messages) for messages in conversations]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per CPU is parallel enough
    chunk = max(1, min(256, len(conversations) // workers))
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, forked, _inherit, (encoder,)) as pool:
        try:
            return list(pool.map(_encode_inherited, conversations, chunksize=chunk))
        except BrokenProcessPool:
            raise RecipeError(
                f"one of {workers} processes died, perhaps for want of memory", "run again with --workers 1"
            ) from None


_inherited: list[ChatEncoder] = []


def _inherit(encoder: ChatEncoder) -> None:
    _inherited.append(encoder)


def _encode_inherited(messages: Conversation) -> Example:
    return _encode(_inherited[0], messages)


def _encode(encoder: ChatEncoder, messages: Conversation) -> Example:
    """Return arrays: lists of Python's integers would take ten times the memory."""
    ids, labels = encoder.encode(messages)
    return numpy.asarray(ids, numpy.int32), numpy.asarray(labels, numpy.int32)


def run(args: argparse.Namespace) -> int:
    if args.context < 8:
        raise RecipeError(f"--context {args.context}: too short; 512 to 8192 are usual")
    started = time.monotonic()
    bad = BadRecords(skip=args.skip_bad)
    conversations = read_conversations(args.input, bad)
    tokenizer = load_tokenizer(args.model)
    workers = args.workers or len(os.sched_getaffinity(0))
    counts = Counts()
    examples = encode_all(ChatEncoder(tokenizer), conversations, workers)
    examples = fit(examples, args.context, args.too_long, counts)
    if not examples:
        raise RecipeError(
            f"{args.input}: no conversation fits {args.context} tokens with an assistant message in it",
            "raise --context or pass --too-long truncate",
        )
    rows = pack(examples, args.context) if args.pack else map(plain_row, examples)
    tokens = sum(len(ids) for ids, _ in examples)
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
        "tokens": tokens,
    }
    output = args.output or args.input.with_suffix(".arrow")
    count = write_rows(output, rows, facts)
    report(output, args, counts, count, tokens, time.monotonic() - started, bad)
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
