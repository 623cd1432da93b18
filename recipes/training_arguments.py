#!/usr/bin/env python3
"""Define the JSON configurations of the trainings, documented schemas that are checked before anything loads.

Names are those of `transformers.TrainingArguments` and `peft.LoraConfig` where they have one, with
the same meaning. `create_training_arguments()` is the only constructor; it refuses unknown keys,
wrong types and values out of range. It must not import torch: run as a script it
checks a configuration in milliseconds, before a job takes its nodes.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from recipe_errors import RecipeError, exit_code


def _key(default: Any, text: str, *, low: float | None = None, high: float | None = None,
         choices: tuple[str, ...] = ()) -> Any:  # fmt: skip
    factory: dict[str, Any] = {"default": default}
    if isinstance(default, list):
        factory = {"default_factory": lambda: list(default)}
    facts = {"help": text, "low": low, "high": high, "choices": choices}
    return dataclasses.field(**factory, metadata=facts)


@dataclass(frozen=True)
class TrainingArguments:
    """The keys with their defaults and meanings; the table in README.md is made from them."""

    model: str = _key("", "base model: local folder or hub id; `--model` takes precedence")
    data: str = _key("", "file made by dataset_tokenize.py; `--data` takes precedence")
    output_dir: str = _key("", "folder for checkpoints and adapter; `--output-dir` takes precedence")

    num_train_epochs: float = _key(1.0, "passes over the data", low=0.0001)
    max_steps: int = _key(0, "stop after this many optimiser steps; 0: by epochs", low=0)
    per_device_train_batch_size: int = _key(1, "rows per process and forward pass", low=1)
    gradient_accumulation_steps: int = _key(1, "forward passes per optimiser step", low=1)
    learning_rate: float = _key(2e-4, "peak learning rate", low=0)
    lr_scheduler_type: str = _key(
        "cosine", "decrease of the rate after warm-up", choices=("cosine", "linear", "constant")
    )
    warmup_ratio: float = _key(0.03, "share of the steps to reach the peak", low=0, high=1)
    weight_decay: float = _key(0.0, "of AdamW", low=0)
    max_grad_norm: float = _key(1.0, "clip gradients to this norm; 0: never", low=0)
    lora: bool = _key(True, "train LoRA matrices; false: all weights, which takes much more memory")
    seed: int = _key(42, "order of the data, LoRA start values, dropout", low=0)

    lora_r: int = _key(16, "rank of the LoRA matrices", low=1)
    lora_alpha: int = _key(32, "scale of the LoRA update (alpha / r)", low=1)
    lora_dropout: float = _key(0.0, "dropout before the LoRA matrices", low=0, high=0.99)
    target_modules: str | list[str] = _key("all-linear", "layers that get LoRA, or `all-linear`")
    modules_to_save: list[str] = _key(
        [], "layers trained in full and saved with the adapter, such as `embed_tokens`"
    )

    load_in_4bit: bool = _key(False, "4-bit NF4 base weights (needs a GPU and bitsandbytes)")
    mixed_precision: str = _key(
        "auto",
        "auto: on a GPU bf16, or fp16 where it has none; on a CPU no, or bf16 where measured to be faster",
        choices=("auto", "no", "bf16", "fp16"),
    )
    gradient_checkpointing: bool = _key(False, "less memory for more time")

    validation_data: str = _key("", "tokenised file whose loss is reported at each checkpoint; none: never")
    validation_rows: int = _key(64, "most rows of that file to use", low=1)
    early_stopping_patience: int = _key(
        0, "end after so many checkpoints without a lower validation loss, with the best one; 0: never", low=0
    )

    save_steps: int = _key(100, "steps between checkpoints; 0: only at the end", low=0)
    save_total_limit: int = _key(2, "number of newest checkpoints to keep", low=1)
    save_keep_every: int = _key(
        0, "keep older checkpoints at multiples of this many steps, too; 0: none", low=0
    )
    logging_steps: int = _key(10, "steps between progress lines", low=1)


@dataclass(frozen=True)
class PreferenceArguments(TrainingArguments):
    """The keys that preference.py has beside these."""

    beta: float = _key(0.1, "how closely the model is held to the one it starts from", low=0.0001, high=100)
    max_length: int = _key(1024, "tokens of a prompt with its answer; longer ones are cut", low=16)


@dataclass(frozen=True)
class RewardArguments(TrainingArguments):
    """The keys that reinforcement.py has beside these."""

    beta: float = _key(
        0.0, "how closely the model is held to the one it starts from; 0: not", low=0, high=100
    )
    num_generations: int = _key(8, "answers to each prompt, which are compared with each other", low=2)
    max_completion_length: int = _key(256, "most tokens of an answer", low=1)
    max_prompt_length: int = _key(1024, "most tokens of a prompt; a longer one is an error", low=8)
    temperature: float = _key(1.0, "of the answers: without variation nothing is learnt", low=0.05, high=5)


FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
Kind = TypeVar("Kind", bound=TrainingArguments)


def create_training_arguments(
    config: Path | None, overrides: dict[str, Any] | None = None
) -> TrainingArguments:
    """Return the configuration of finetune.py; see create_arguments."""
    return create_arguments(TrainingArguments, config, overrides)


def create_arguments(kind: type[Kind], config: Path | None, overrides: dict[str, Any] | None = None) -> Kind:
    """Read the JSON file, apply overrides, check every value; None for the file: all defaults."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = _read(config) if config else {}
    where = str(config) if config else "--set"
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0)[0]
            script = Path(sys.argv[0]).name or "finetune.py"
            raise RecipeError(
                f"{where}: unknown key {key!r}; did you mean {near!r}? All keys: {script} --explain-config"
            )
    checked = {key: _checked(fields[key], value, where) for key, value in values.items()}
    return kind(**checked)


def require_places(arguments: TrainingArguments) -> None:
    """Require model, data and output, from the file or from options."""
    for key in ("model", "data", "output_dir"):
        if not getattr(arguments, key):
            flag = f"--{key.replace('_', '-')}"
            raise RecipeError(f"{key!r} is not set; add it to the configuration, or pass {flag}")


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """Parse `key=value` of the command line; a value that is not JSON is taken as text."""
    overrides = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found:
            raise RecipeError(f"--set {pair}: expected key=value, for example lora_r=8")
        try:
            overrides[key] = json.loads(text)
        except json.JSONDecodeError:
            overrides[key] = text
    return overrides


def explain(kind: type[TrainingArguments] = TrainingArguments, without: Iterable[str] = ()) -> str:
    """Return the schema as a Markdown table."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in without}
    for name, field in fields.items():
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        choices = field.metadata["choices"]
        meaning = field.metadata["help"] + (f" ({', '.join(choices)})" if choices else "")
        lines.append(f"| `{name}` | `{json.dumps(default)}` | {meaning} |")
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise RecipeError(f"{path}: line {error.lineno}: broken JSON ({error.msg})") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: expected an object with keys, see --explain-config")
    return values


def _checked(field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    kind, facts = str(field.type), field.metadata
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not _has_type(value, kind):
        raise RecipeError(f"{where}: {field.name} is {value!r}, expected {kind}")
    if facts["choices"] and value not in facts["choices"]:
        raise RecipeError(f"{where}: {field.name} is {value!r}, choose one of {', '.join(facts['choices'])}")
    low, high = facts["low"], facts["high"]
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RecipeError(f"{where}: {field.name} is {value}, must be {span}")
    return value


def _has_type(value: Any, kind: str) -> bool:
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return {
        "str": isinstance(value, str),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, float),
        "bool": isinstance(value, bool),
        "list[str]": strings,
        "str | list[str]": isinstance(value, str) or strings,
    }[kind]


def run(args: argparse.Namespace) -> int:
    create_training_arguments(args.config)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check a configuration of finetune.py.")
    parser.add_argument("config", type=Path, help="JSON file; see finetune.py --explain-config")
    return exit_code(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
