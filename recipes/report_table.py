#!/usr/bin/env python3
"""Show a report of evaluator.py as a table.

The same as `evaluator.py --table`, without waiting for the training libraries to load.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, exit_code

# label, key, whether the key is one of ours (under `details`), decimals
ROWS = (
    ("perplexity", "perplexity", False, 2),
    ("accuracy, exact match", "accuracy", True, 3),
    ("BLEU", "bleu", True, 1),
    ("ROUGE-L", "rougeL", True, 3),
    ("characters per answer", "message_length_avg", False, 1),
    ("tokens per answer", "tokens_per_message", True, 1),
    ("tokens per second", "tokens_per_second", True, 1),
)
SHOWN_CHARACTERS = 300
_MODELS = ("base_model", "finetuned_model")


def table(path: Path) -> str:
    """Return the table of both models, then one answer of each."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        lines = [f"{'':<24}{'base':>12}{'fine-tuned':>12}"]
        for label, key, is_ours, decimals in ROWS:
            values = [_value(report, model, key, is_ours) for model in _MODELS]
            if any(value is not None for value in values):
                shown = ["-" if value is None else f"{value:,.{decimals}f}" for value in values]
                lines.append(f"{label:<24}{shown[0]:>12}{shown[1]:>12}")
        if found := report["details"].get("right_answers"):
            label = f"right answers of {found['asked']}"
            lines.append(f"{label:<24}{found['base_model']:>12}{found['finetuned_model']:>12}")
        return "\n".join([*lines, *_sample(report)])
    except (KeyError, TypeError, ValueError) as error:
        raise RecipeError(f"{path}: not a report of evaluator.py ({error})") from error


def _value(report: dict[str, Any], model: str, key: str, is_ours: bool) -> float | None:
    source = report["details"][model] if is_ours else report[model]
    if key == "rougeL":
        source = source["rouge"] or {}
    return source.get(key)


def _sample(report: dict[str, Any]) -> list[str]:
    base, finetuned = (report[model]["sample_generations"] for model in _MODELS)
    if not base:
        return []
    parts = {
        "customer": base[0]["input"],
        "expected": base[0]["reference"],
        "base": base[0]["generated"],
        "fine-tuned": finetuned[0]["generated"],
    }
    return ["", *(_wrapped(name, text) for name, text in parts.items())]


def _wrapped(name: str, text: str) -> str:
    text = " ".join(text.split())
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + " ..."
    indent = " " * 12
    return textwrap.fill(f"{name + ':':<12}{text}", 96, subsequent_indent=indent)


def run(args: argparse.Namespace) -> int:
    print(table(args.report))
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Show a report of evaluator.py as a table.")
    parser.add_argument("report", type=Path, help="JSON file that evaluator.py wrote")
    return exit_code(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
