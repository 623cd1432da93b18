#!/usr/bin/env python3
"""Write a small data set of bank conversations, so that the whole path can be tried immediately.

"InnovationBank" and its customers are invented; the phrases are in bank_topics.json. The same
seed gives the same file. The CSV has one exchange per row, as an export from a chat tool would:
`conversation_id`, `turn`, `topic`, `customer`, `advisor`. With `--test`, a second file asks about
the same topics in words that the first does not have, to evaluate on.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conversations import atomic_text
from recipe_errors import RecipeError, exit_code, note

TOPICS = Path(__file__).with_name("bank_topics.json")
HEADER = ("conversation_id", "turn", "topic", "customer", "advisor")
ALL_TOPICS = 20
SHARE_WITH_FOLLOW_UP, SHARE_WITH_CLOSING = 0.25, 0.1

Exchange = tuple[str, str]  # customer, advisor
Row = tuple[str, int, str, str, str]  # as HEADER says


def conversation(
    topic: dict[str, Any], words: str, phrases: dict[str, Any], generator: random.Random
) -> list[Exchange]:
    """Return one to three exchanges that begin with these words about a topic, with names, sums and places
    filled in."""
    values = {slot: generator.choice(choices) for slot, choices in phrases["slots"].items()}
    parts = [{**topic, "customer": [words]}]
    if topic["follow_ups"] and generator.random() < SHARE_WITH_FOLLOW_UP:
        parts.append(generator.choice(topic["follow_ups"]))
    if generator.random() < SHARE_WITH_CLOSING:
        parts.append(generator.choice(phrases["closings"]))
    exchanges = [_exchange(part, generator) for part in parts]
    customer, advisor = exchanges[0]
    exchanges[0] = (_capital(generator.choice(phrases["openings"]) + customer), advisor)
    return [(one.format(**values), other.format(**values)) for one, other in exchanges]


def _exchange(part: dict[str, Any], generator: random.Random) -> Exchange:
    return generator.choice(part["customer"]), generator.choice(part["advisor"])


def _capital(text: str) -> str:
    """Capitalise the first letter, and the one after a full stop inside the opening."""
    head, stop, tail = text.partition(". ")
    joined = head[:1].upper() + head[1:] + stop
    return joined + tail[:1].upper() + tail[1:]


def rows(count: int, seed: int, topics: int = ALL_TOPICS) -> list[Row]:
    """Return all rows of the data set, with each of the first `topics` topics, and each of its wordings,
    equally often and in random order."""
    phrases = json.loads(TOPICS.read_text(encoding="utf-8"))
    generator = random.Random(seed)
    wordings = [(each, _shuffled(each["customer"], generator)) for each in phrases["topics"][:topics]]
    begun = [
        (topic, words[number // len(wordings) % len(words)])
        for number, (topic, words) in zip(range(count), itertools.cycle(wordings), strict=False)
    ]
    generator.shuffle(begun)
    return [
        (f"chat-{number:04d}", turn, topic["topic"], customer, advisor)
        for number, (topic, words) in enumerate(begun, start=1)
        for turn, (customer, advisor) in enumerate(conversation(topic, words, phrases, generator))
    ]


def _shuffled(words: Sequence[str], generator: random.Random) -> list[str]:
    return generator.sample(words, len(words))


def unseen_rows(seed: int, topics: int = ALL_TOPICS) -> list[Row]:
    """Return one question in each of the words that `rows` does not use, with its answer."""
    phrases = json.loads(TOPICS.read_text(encoding="utf-8"))
    generator = random.Random(seed)
    asked = [(topic, words) for topic in phrases["topics"][:topics] for words in topic["unseen"]]
    found: list[Row] = []
    for number, (topic, words) in enumerate(asked, start=1):
        values = {slot: generator.choice(choices) for slot, choices in phrases["slots"].items()}
        question, answer = _capital(words.format(**values)), topic["advisor"][0].format(**values)
        found.append((f"test-{number:04d}", 0, topic["topic"], question, answer))
    return found


def run(args: argparse.Namespace) -> int:
    if args.conversations < 1:
        raise RecipeError(f"--conversations {args.conversations}: at least 1 is needed")
    if not 1 <= args.topics <= ALL_TOPICS:
        raise RecipeError(f"--topics {args.topics}: from 1 to {ALL_TOPICS}")
    write(args.output, rows(args.conversations, args.seed, args.topics))
    if args.test is not None:
        write(args.test, unseen_rows(args.seed, args.topics))
    return 0


def write(path: Path, table: list[Row]) -> None:
    with atomic_text(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(table)
    note(f"{path}: {len({row[0] for row in table})} conversations, {len(table)} exchanges")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a small synthetic data set of bank conversations (CSV).",
        epilog="example: python3 make_dataset.py --output data/bank.csv --conversations 400",
    )
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--test", type=Path, help="CSV file to write with the questions in other words")
    parser.add_argument("--conversations", type=int, default=400, help="how many (default 400)")
    parser.add_argument(
        "--topics", type=int, default=ALL_TOPICS, help=f"number of topics (default {ALL_TOPICS})"
    )
    parser.add_argument("--seed", type=int, default=42, help="same seed, same file (default 42)")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
