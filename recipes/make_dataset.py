#!/usr/bin/env python3
"""Write a small data set of bank conversations, so that the whole path can be tried immediately.

"InnovationBank" and its customers are invented; the phrases are in bank_topics.json. The same
seed gives the same file. The CSV has one exchange per row, as an export from a chat tool would:
`conversation_id`, `turn`, `topic`, `customer`, `advisor`.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from pathlib import Path
from typing import Any

from conversations import atomic_text
from recipe_errors import RecipeError, exit_code, note

TOPICS = Path(__file__).with_name("bank_topics.json")
HEADER = ("conversation_id", "turn", "topic", "customer", "advisor")
SHARE_WITH_FOLLOW_UP, SHARE_WITH_CLOSING = 0.6, 0.3

Exchange = tuple[str, str]  # customer, advisor


def conversation(topic: dict[str, Any], phrases: dict[str, Any], generator: random.Random) -> list[Exchange]:
    """Return one to three exchanges about a topic, with names, sums and places filled in."""
    values = {slot: generator.choice(words) for slot, words in phrases["slots"].items()}
    parts = [topic]
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


def rows(count: int, seed: int) -> list[tuple[str, int, str, str, str]]:
    """Return all rows of the data set, with topics equally often and in random order."""
    phrases = json.loads(TOPICS.read_text(encoding="utf-8"))
    generator = random.Random(seed)
    topics = [phrases["topics"][number % len(phrases["topics"])] for number in range(count)]
    generator.shuffle(topics)
    return [
        (f"chat-{number:04d}", turn, topic["topic"], customer, advisor)
        for number, topic in enumerate(topics, start=1)
        for turn, (customer, advisor) in enumerate(conversation(topic, phrases, generator))
    ]


def run(args: argparse.Namespace) -> int:
    if args.conversations < 1:
        raise RecipeError(f"--conversations {args.conversations}: at least 1 is needed")
    table = rows(args.conversations, args.seed)
    with atomic_text(args.output) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(table)
    note(f"{args.output}: {args.conversations} conversations, {len(table)} exchanges")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a small synthetic data set of bank conversations (CSV).",
        epilog="example: python3 make_dataset.py --output data/bank.csv --conversations 400",
    )
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--conversations", type=int, default=400, help="how many (default 400)")
    parser.add_argument("--seed", type=int, default=42, help="same seed, same file (default 42)")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
