#!/usr/bin/env python3
"""Count the tokens that a training would read and learn, and show three conversations as the model does.

It needs the model's tokenizer: a `tokenizer.json` is read by the small packages `tokenizers` and `jinja2`,
any other by `transformers`. Of many conversations a part is tokenised, evenly spread over the file, and the
rest is estimated from it. Prints a JSON object, whose `state` is done, failed or not_run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chat_messages import Conversation
from conversations import BadRecords
from dataset_columns import add_column_options, choose_columns, named_columns
from dataset_exchanges import read_conversations
from dataset_rows import FORMATS, open_table, place_in
from method_rows import DPO, SUPERVISED, read_rows
from personal_data import masked
from reading_progress import Progress
from recipe_errors import RecipeError, exit_code

LONGEST_EXAMPLE = 4_000
"""Characters of an example that are printed."""


class NotRun(Exception):
    """The tokens cannot be counted here; the message says what is missing."""


def open_encoder(model: str) -> tuple[Any, str]:
    """Return an encoder for a model, and the library that tokenises. Raises NotRun; RecipeError."""
    light = (Path(model) / "tokenizer.json").is_file() and importlib.util.find_spec("tokenizers")
    name = "tokenizers" if light else "transformers"
    missing = [each for each in (name, "jinja2") if not importlib.util.find_spec(each)]
    if missing:
        raise NotRun(f"the package {missing[0]} is not installed here; run `pip install tokenizers jinja2`")
    # Slow to load, and not there where NotRun is raised.
    from chat_tokens import ChatEncoder, load_tokenizer  # noqa: PLC0415
    from light_tokenizer import LightTokenizer  # noqa: PLC0415

    tokenizer = LightTokenizer(Path(model)) if light else load_tokenizer(model)
    return ChatEncoder(tokenizer), f"{name} {version(name)}"


@dataclass
class TokenCounts:
    """Counts of the conversations that were tokenised."""

    context: int
    """Tokens per row; 0: nothing is cut."""
    conversations: int = 0
    tokens: int = 0
    """All that are trained on, less what is cut."""
    learnt: int = 0
    longest: int = 0
    longest_place: str = ""
    truncated: int = 0
    truncated_places: list[str] = field(default_factory=list)
    without_answer: int = 0
    """Conversations of which nothing to learn is left before the cut."""

    def add(self, ids: list[int], labels: list[int], ignored: int, place: str) -> None:
        self.conversations += 1
        if len(ids) > self.longest:
            self.longest, self.longest_place = len(ids), place
        if self.context and len(ids) > self.context:
            self.truncated += 1
            if len(self.truncated_places) < 5:
                self.truncated_places.append(place)
            labels = labels[: self.context]
        learnt = len(labels) - labels.count(ignored)
        self.without_answer += not learnt
        self.learnt += learnt
        self.tokens += len(labels) if learnt else 0


def run(args: argparse.Namespace) -> int:
    try:
        document = {"state": "done", **report(args)}
    except NotRun as error:
        document = {"state": "not_run", "reason": str(error)}
    except RecipeError as error:
        document = {"state": "failed", "reason": str(error).replace(f"{args.input}: ", "")}
    json.dump(document, sys.stdout)
    print()
    return 0


def report(args: argparse.Namespace) -> dict[str, Any]:
    encoder, library = open_encoder(args.model)
    from chat_tokens import IGNORED  # noqa: PLC0415  it needs the library that was just found

    counts, examples, seen = TokenCounts(args.context), dict[int, tuple[str, Conversation]](), 0
    table = open_table(args.input, args.format, skip_bad=True)
    every, progress = -(-table.count // args.most), Progress(args.input.name, table.count)
    shown = (0, table.count // 2 // every * every)
    for number, (place, messages) in enumerate(conversations(table, args)):
        seen = number + 1
        progress.tell(seen)
        if number % every:
            continue
        ids, labels = encode(encoder, messages, place)
        counts.add(ids, labels, IGNORED, place)
        examples[number if number in shown else sys.maxsize] = place, messages
    return {
        "library": library,
        "context": args.context,
        "is_estimated": every > 1,
        "tokenised": counts.conversations,
        "conversations": seen,
        "tokens": _whole(counts.tokens, counts, seen),
        "learnt": _whole(counts.learnt, counts, seen),
        "longest": counts.longest,
        "longest_place": counts.longest_place,
        "truncated": _whole(counts.truncated, counts, seen),
        "truncated_places": counts.truncated_places,
        "without_answer": _whole(counts.without_answer, counts, seen),
        "examples": [example(encoder, *examples[at], args.context) for at in sorted(examples)],
    }


def conversations(table: Any, args: argparse.Namespace) -> Iterator[tuple[str, Conversation]]:
    """Yield what can be used of the data, with places."""
    bad = BadRecords(skip=True)
    if args.method != SUPERVISED:
        for where, record in read_rows(table, args.method, bad):
            yield place_in(where, args.input), record.conversation
        return
    columns = choose_columns(table.columns, named_columns(args), args.ignore_column)
    for where, messages in read_conversations(table, columns, None, bad):
        yield place_in(where, args.input), messages


def encode(encoder: Any, messages: Conversation, place: str) -> tuple[list[int], list[int]]:
    try:
        return encoder.encode(messages)
    except RecipeError as error:
        raise RecipeError(f"{place}: {error}") from error


def example(encoder: Any, place: str, messages: Conversation, context: int) -> dict[str, Any]:
    """Return a conversation as the model reads it, with personal data masked."""
    room, left_out, spans = LONGEST_EXAMPLE, 0, list[dict[str, str]]()
    messages = Conversation(map(_masked, messages), messages.tools)
    for text, kind in encoder.spans(messages, context or sys.maxsize):
        shown = text[:room]
        room, left_out = room - len(shown), left_out + len(text) - len(shown)
        if shown:
            spans.append({"text": shown, "kind": kind})
    return {"place": place, "spans": spans, "left_out_characters": left_out}


def _masked(value: Any) -> Any:
    """Return a message with personal data masked in all its texts, also in calls of tools."""
    if isinstance(value, dict):
        return {name: _masked(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_masked(each) for each in value]
    return masked(value) if isinstance(value, str) else value


def _whole(number: int, counts: TokenCounts, conversations: int) -> int:
    """Return a count for all conversations, from those that were tokenised."""
    return round(number * conversations / counts.conversations) if counts.conversations else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Count tokens, and show conversations as a model reads them; prints JSON.",
        epilog="example: python3 token_report.py chats.csv --model Qwen/Qwen3-8B --context 2048",
    )
    parser.add_argument("input", type=Path, help="Parquet, CSV, JSON or JSONL")
    parser.add_argument("--model", required=True, help="local folder, or a hub id, with a tokenizer")
    parser.add_argument("--context", type=int, default=0, help="tokens per row; 0: nothing is cut")
    parser.add_argument(
        "--most", type=int, default=20_000, help="tokenise about so many conversations (default 20000)"
    )
    parser.add_argument("--format", choices=list(dict.fromkeys(FORMATS.values())))
    parser.add_argument(
        "--method", choices=(SUPERVISED, DPO), default=SUPERVISED, help="dpo: prompts with preferred answers"
    )
    add_column_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
