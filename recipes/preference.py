#!/usr/bin/env python3
"""Fine-tune a language model on preferences, by direct preference optimisation (DPO).

Each row has a prompt and two answers. The model learns to make the preferred one more likely than the other,
compared with the model that it starts from; `beta` says how far it may move. The trainer is TRL's; the token
ids are ours, so that prompts and answers are those of finetune.py and of a model server. Like finetune.py it
writes checkpoints, resumes, and stops on SIGTERM with 75.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from method_rows import DPO, Preference, read_records
from recipe_errors import EXIT_OK, RecipeError, exit_code, needed_packages, note
from training_arguments import (
    PreferenceArguments,
    create_arguments,
    explain,
    parse_overrides,
    require_places,
)

with needed_packages():
    from datasets import Dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    from chat_tokens import ChatEncoder
    from finetune import StopRequest
    from trl_run import JobCallback, Run, carry_out, common_settings, load_policy

MEASURES = {"rewards/margins": "reward_margin", "rewards/accuracies": "preference_accuracy"}


class PreparedDpoTrainer(DPOTrainer):
    """The trainer for rows that have their token ids."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def encoded(encoder: ChatEncoder, record: Preference, longest: int) -> dict[str, list[int]] | None:
    """Return the token ids of a row; None where the prompt leaves no room for an answer."""
    parts: dict[str, list[int]] = {}
    for name, answer in (("chosen_ids", record.preferred), ("rejected_ids", record.other)):
        prompt, completion = encoder.parted(record.prompt, answer)
        parts["prompt_ids"] = prompt
        parts[name] = completion[: max(longest - len(prompt), 0)]
    return parts if parts["chosen_ids"] and parts["rejected_ids"] else None


def rows_of(path: Path, encoder: ChatEncoder, longest: int) -> Dataset:
    found = [encoded(encoder, record, longest) for record in read_records(path, DPO)]
    usable = [row for row in found if row is not None]
    if len(usable) < len(found):
        note(f"{path}: {len(found) - len(usable)} prompts of {longest} tokens and more are left out")
    if not usable:
        raise RecipeError(
            f"{path}: no prompt leaves room for an answer in {longest} tokens; raise max_length"
        )
    return Dataset.from_list(usable)


def settings(arguments: PreferenceArguments, has_validation: bool) -> DPOConfig:
    evaluation = {"eval_strategy": "steps", "eval_steps": arguments.save_steps} if has_validation else {}
    return DPOConfig(
        **common_settings(arguments),
        **evaluation,
        per_device_eval_batch_size=arguments.per_device_train_batch_size,
        beta=arguments.beta,
        max_length=arguments.max_length,
        disable_dropout=not arguments.lora_dropout,
    )


def tune(arguments: PreferenceArguments, stop: StopRequest) -> int:
    model, tokenizer, adapter = load_policy(arguments)
    encoder = ChatEncoder(tokenizer)
    rows = rows_of(Path(arguments.data), encoder, arguments.max_length)
    validation = None
    if arguments.validation_data and arguments.save_steps:
        validation = rows_of(Path(arguments.validation_data), encoder, arguments.max_length)
        validation = validation.select(range(min(len(validation), arguments.validation_rows)))
    run = Run(arguments, len(rows), MEASURES, lambda: stop.asked)
    trainer = PreparedDpoTrainer(
        model,
        args=settings(arguments, validation is not None),
        train_dataset=rows,
        eval_dataset=validation,
        processing_class=tokenizer,
        peft_config=adapter,
        callbacks=[JobCallback(run)],
    )
    return carry_out(run, trainer, tokenizer)


def run_script(args: argparse.Namespace) -> int:
    if args.explain_config:
        print(explain(PreferenceArguments))
        return EXIT_OK
    given = {"model": args.model, "data": args.data, "output_dir": args.output_dir}
    arguments = create_arguments(PreferenceArguments, args.config, {**parse_overrides(args.set), **given})
    require_places(arguments)
    with StopRequest() as stop:
        return tune(arguments, stop)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune a language model on preferences (DPO).",
        epilog="example: python3 preference.py --model Qwen/Qwen3-0.6B --data preferences_train.jsonl \\\n"
        "    --output-dir run1 --set beta=0.1\n"
        "exit codes: as finetune.py",
    )
    parser.add_argument("--config", type=Path, help="JSON file; see --explain-config")
    parser.add_argument("--model", help="base model: local folder or hub id")
    parser.add_argument("--data", help="preferences, as dataset_convert.py --method dpo writes them")
    parser.add_argument("--output-dir", help="folder for checkpoints and the adapter")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument("--explain-config", action="store_true", help="print all keys and stop")
    return parser


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return exit_code(run_script, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
