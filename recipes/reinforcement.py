#!/usr/bin/env python3
"""Fine-tune a language model on rewards, by group relative policy optimisation (GRPO).

The model answers each prompt several times, a grader scores the answers, and those above the mean of their
prompt become more likely. The grader is data (graders.py). The trainer is TRL's; prompts are rendered as
finetune.py and a model server do. Like finetune.py it writes checkpoints, resumes, and stops on SIGTERM
with 75.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from graders import Grader, read_grader, score
from method_rows import REINFORCEMENT, read_records
from recipe_errors import EXIT_OK, RecipeError, exit_code, needed_packages
from training_arguments import RewardArguments, create_arguments, explain, parse_overrides, require_places

with needed_packages():
    from datasets import Dataset

    # Where vLLM is installed, TRL would load it, which takes half a minute, and not use it.
    vars(import_module("trl.import_utils"))["is_vllm_available"] = lambda *_, **__: False
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from chat_tokens import ChatEncoder
    from finetune import StopRequest
    from trl_run import JobCallback, Run, carry_out, common_settings, load_policy

MEASURES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "completions/mean_length": "answer_tokens",
    "completions/clipped_ratio": "cut_answers",
}


class PreparedGrpoTrainer(GRPOTrainer):
    """The trainer for prompts that have their token ids."""

    prompts: dict[str, list[int]]

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompts[prompt] for prompt in prompts], None, {}


class Reward:
    """The grader as a function of answers."""

    __name__ = "grader"

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    def __call__(self, completions: list[str], item: list[str], **_: Any) -> list[float | None]:
        return [
            score(self.grader, json.loads(fields), answer.strip())
            for answer, fields in zip(completions, item, strict=True)
        ]


def rows_of(path: Path, encoder: ChatEncoder, longest: int) -> tuple[Dataset, dict[str, list[int]]]:
    """Return the rows, and the token ids of each prompt."""
    rows, prompts = list[dict[str, str]](), dict[str, list[int]]()
    for number, record in enumerate(read_records(path, REINFORCEMENT), 1):
        text = encoder.prompt(record.prompt)
        prompts[text] = encoder.prompt_ids(record.prompt)
        if len(prompts[text]) > longest:
            raise RecipeError(
                f"{path}: line {number}: the prompt has {len(prompts[text])} tokens, more than {longest};"
                " shorten it, or raise the context"
            )
        rows.append({"prompt": text, "item": json.dumps(record.item)})
    return Dataset.from_list(rows), prompts


def settings(arguments: RewardArguments) -> GRPOConfig:
    """Return the settings of the trainer, which counts answers where `arguments` count prompts."""
    common = common_settings(arguments)
    prompts = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    common["per_device_train_batch_size"] = arguments.num_generations
    common["gradient_accumulation_steps"] = prompts
    return GRPOConfig(
        **common,
        num_generations=arguments.num_generations,
        max_completion_length=arguments.max_completion_length,
        temperature=arguments.temperature,
        beta=arguments.beta,
        disable_dropout=not arguments.lora_dropout,
    )


def tune(arguments: RewardArguments, grader: Grader, stop: StopRequest) -> int:
    model, tokenizer, adapter = load_policy(arguments)
    encoder = ChatEncoder(tokenizer)
    rows, prompts = rows_of(Path(arguments.data), encoder, arguments.max_prompt_length)
    run = Run(arguments, len(rows), MEASURES, lambda: stop.asked)
    trainer = PreparedGrpoTrainer(
        model,
        reward_funcs=Reward(grader),
        args=settings(arguments),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=adapter,
        callbacks=[JobCallback(run)],
    )
    trainer.prompts = prompts
    return carry_out(run, trainer, tokenizer)


def run_script(args: argparse.Namespace) -> int:
    if args.explain_config:
        print(explain(RewardArguments))
        return EXIT_OK
    given = {"model": args.model, "data": args.data, "output_dir": args.output_dir}
    arguments = create_arguments(RewardArguments, args.config, {**parse_overrides(args.set), **given})
    require_places(arguments)
    if args.grader is None:
        raise RecipeError("needs --grader, see --help")
    grader = read_grader(args.grader)
    with StopRequest() as stop:
        return tune(arguments, grader, stop)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune a language model on rewards (GRPO).",
        epilog="example: python3 reinforcement.py --model Qwen/Qwen3-0.6B --data tasks_train.jsonl \\\n"
        "    --grader grader.json --output-dir run1 --set num_generations=8\n"
        "exit codes: as finetune.py",
    )
    parser.add_argument("--config", type=Path, help="JSON file; see --explain-config")
    parser.add_argument("--model", help="base model: local folder or hub id")
    parser.add_argument("--data", help="tasks, as dataset_convert.py --method reinforcement writes them")
    parser.add_argument("--grader", type=Path, help="JSON file of the grader; see graders.py")
    parser.add_argument("--output-dir", help="folder for checkpoints and the adapter")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument("--explain-config", action="store_true", help="print all keys and stop")
    return parser


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return exit_code(run_script, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
