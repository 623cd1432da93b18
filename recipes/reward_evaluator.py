#!/usr/bin/env python3
"""Compare a base model with a fine-tuned one by the scores that a grader gives their answers.

Prints one JSON report to stdout, with the parts of that of evaluator.py: `base_model`, `finetuned_model`,
`comparison` and `details`. Answers are greedy. The tasks must not have been trained on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from graders import Grader, read_grader, score
from method_rows import REINFORCEMENT, Task, read_records
from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import torch

    from chat_tokens import ChatEncoder, load_tokenizer
    from generation import generate
    from lora_model import load_base, with_adapter
    from precision import precision


class Evaluation:
    """The same measurement for both models."""

    def __init__(self, args: argparse.Namespace, tasks: list[Task], grader: Grader) -> None:
        self.args, self.tasks, self.grader = args, tasks, grader
        self.encoder = ChatEncoder(load_tokenizer(args.model))
        self.prompts = [self.encoder.prompt(task.prompt) for task in tasks]

    def measure(self, model: Any, name: str) -> tuple[dict[str, Any], list[float]]:
        """Return the part of the report for one model, and its scores."""
        started = time.monotonic()
        longest, at_a_time = self.args.max_new_tokens, self.args.batch
        said = generate(model.eval(), self.encoder, self.prompts, longest, at_a_time).texts
        scores = [score(self.grader, task.item, text) for task, text in zip(self.tasks, said, strict=True)]
        note(f"{name}: measured in {time.monotonic() - started:.1f} s")
        shown = zip(self.tasks, said, scores, strict=True)
        samples = [
            {"input": task.prompt[-1]["content"], "generated": text, "reward": reward}
            for task, text, reward in list(shown)[: self.args.show]
        ]
        return {
            "reward": sum(scores) / len(scores),
            "message_length_avg": sum(map(len, said)) / len(said),
            "sample_generations": samples,
        }, scores


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    tasks = read_records(args.data, REINFORCEMENT)
    chosen = random.Random(args.seed).sample(tasks, min(args.samples, len(tasks)))
    evaluation = Evaluation(args, chosen, read_grader(args.grader))
    model = load_base(args.model, precision(args.precision))
    base, before = evaluation.measure(model, "base model")
    if args.finetuned:
        del model
        model = load_base(args.finetuned, precision(args.precision))
    else:
        model = with_adapter(model, args.adapter)
    tuned, after = evaluation.measure(model, "fine-tuned model")
    pairs = list(zip(before, after, strict=True))
    return {
        "base_model": base,
        "finetuned_model": tuned,
        "comparison": {"reward": tuned["reward"] - base["reward"]},
        "details": {
            "comparison_signs": {"reward": "how far the mean reward rose; positive is better"},
            "test_conversations": len(tasks),
            "generated_messages": len(chosen),
            "better": sum(new > old for old, new in pairs),
            "worse": sum(new < old for old, new in pairs),
            "max_new_tokens": args.max_new_tokens,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "model": args.model,
            "adapter": str(args.finetuned or args.adapter),
            "data": str(args.data),
        },
    }


def run(args: argparse.Namespace) -> int:
    if not args.adapter and not args.finetuned:
        raise RecipeError("needs --adapter or --finetuned, see --help")
    print(json.dumps(evaluate(args), indent=2, ensure_ascii=False))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compare a base model with a fine-tuned one by a grader; JSON on stdout.",
        epilog="example: python3 reward_evaluator.py --model base_model --adapter run1/adapter \\\n"
        "    --data tasks_test.jsonl --grader grader.json > report.json",
    )
    parser.add_argument("--model", required=True, help="base model: local folder or hub id")
    parser.add_argument("--adapter", type=Path, help="folder that reinforcement.py wrote")
    parser.add_argument("--finetuned", help="in its place, a whole model")
    parser.add_argument("--data", type=Path, required=True, help="tasks that were not trained on (JSONL)")
    parser.add_argument("--grader", type=Path, required=True, help="JSON file of the grader")
    parser.add_argument("--samples", type=int, default=64, help="most tasks to use (default 64)")
    parser.add_argument("--show", type=int, default=5, help="answers in the report (default 5)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="tokens per answer (default 128)")
    parser.add_argument("--batch", type=int, default=16, help="answers at a time (default 16)")
    parser.add_argument("--precision", choices=("auto", "no", "bf16", "fp16"), default="auto")
    parser.add_argument("--seed", type=int, default=42, help="seed of the choice of tasks (default 42)")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
