#!/usr/bin/env python3
"""Ask the served models the questions that evaluator.py found to be learnt, with the right answers.

Exits with 1 where there is no such question, or where the fine-tuned model answers none of them right now.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from right_answers import is_right

MAX_TOKENS = 96
"""Answers of a bank are shorter; a base model that finds no end is cut."""


def answer_of(model: str, question: str) -> str:
    """Return the model's answer, sampled as the model's own settings say."""
    command = ["neo", "chat", model, "--once", question, "--max-tokens", str(MAX_TOKENS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="JSON of evaluator.py")
    parser.add_argument("--base", required=True, help="name of the served base model")
    parser.add_argument("--tuned", required=True, help="name of the served fine-tuned model")
    options = parser.parse_args()
    found = json.loads(options.report.read_text(encoding="utf-8"))["details"]["right_answers"]
    print(
        f"Of {found['asked']} questions that neither model has seen, the base answers {found['base_model']}"
        f" right, the fine-tuned model {found['finetuned_model']}."
    )
    right = 0
    for each in found["learnt"]:
        question = each["input"]
        base, tuned = answer_of(options.base, question), answer_of(options.tuned, question)
        right += is_right(tuned, each["reference"])
        mark = "right" if is_right(tuned, each["reference"]) else "wrong"
        print(f"\nQuestion    {question}\nExpected    {each['reference']}")
        print(f"Base        {' '.join(base.split())}\nFine-tuned  {tuned}   ({mark})")
    if not right:
        print(
            "\nThe fine-tuned model answers none of the questions right. See the report above.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
