"""Run a trainer of TRL as finetune.py runs its own loop: whole checkpoints, metrics, stop and resume.

The trainer writes a checkpoint into a folder of its own. It gets its name, and a manifest with the checksums
of its files, only when it is whole. A run is continued from the newest one, with the same order of data and
the same random numbers. This module does not know what is learnt.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers import TrainerCallback

from chat_tokens import load_tokenizer
from checkpoint import Checkpoint, keep_newest, newest_whole, publish
from lora_model import adapter_config, load_base
from precision import name_of, precision
from recipe_errors import EXIT_OK, EXIT_STOPPED, RecipeError, note
from stored_model import save_whole
from training_arguments import TrainingArguments
from training_metrics import MetricsFile

WORK = ".trainer"
"""The folder that the trainer writes to, in the output folder."""
IDENTITY = ("model", "seed", "lora", "lora_r", "lora_alpha", "target_modules")
Measure = Mapping[str, str]
"""Our names of what a trainer measures, by its own."""


@dataclass
class Run:
    """The settings of a run, and its files."""

    arguments: TrainingArguments
    rows: int
    measures: Measure
    is_stopped: Callable[[], bool]
    metrics: MetricsFile = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = MetricsFile(self.output / "metrics.jsonl")

    @property
    def output(self) -> Path:
        return Path(self.arguments.output_dir)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must not change between a checkpoint and its resumption."""
        return {name: getattr(self.arguments, name) for name in IDENTITY} | {"rows": self.rows}

    def find(self) -> Checkpoint | None:
        """Return the checkpoint to continue from. Raises RecipeError where it is of another run."""
        found = newest_whole(self.output)
        for name, value in self.identity().items() if found else ():
            stored = found.state.get("identity", {}).get(name) if found else None
            if stored != value:
                raise RecipeError(
                    f"{found and found.path} belongs to another run: {name} was {stored!r}, is now {value!r};"
                    " choose another output_dir, or remove this one to start again"
                )
        return found


def common_settings(arguments: TrainingArguments) -> dict[str, Any]:
    """Return the settings that all trainers have, by the names of `transformers.TrainingArguments`."""
    has_gpu = torch.cuda.is_available()
    wanted = arguments.mixed_precision
    # On a CPU a run that continues might measure another type to be the faster one.
    dtype = name_of(precision("no" if wanted == "auto" and not has_gpu else wanted))
    return {
        "output_dir": str(Path(arguments.output_dir) / WORK),
        "num_train_epochs": arguments.num_train_epochs,
        "max_steps": arguments.max_steps or -1,
        "per_device_train_batch_size": arguments.per_device_train_batch_size,
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps,
        "learning_rate": arguments.learning_rate,
        "lr_scheduler_type": arguments.lr_scheduler_type,
        "warmup_steps": min(arguments.warmup_ratio, 0.999),
        "weight_decay": arguments.weight_decay,
        "max_grad_norm": arguments.max_grad_norm or math.inf,
        "seed": arguments.seed,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "use_cpu": not has_gpu,
        "gradient_checkpointing": arguments.gradient_checkpointing,
        "logging_steps": arguments.logging_steps,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if arguments.save_steps else "no",
        "save_steps": arguments.save_steps or 500,
        "save_total_limit": None,
        "report_to": "none",
        "disable_tqdm": True,
    }


def load_policy(arguments: TrainingArguments) -> tuple[Any, Any, peft.LoraConfig | None]:
    """Return the model to train, its tokenizer, and the adapter to put on it; None to train all weights."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(arguments.seed)
    model = load_base(arguments.model, None, arguments.load_in_4bit)
    tokenizer = load_tokenizer(arguments.model)
    return model, tokenizer, adapter_config(arguments) if arguments.lora else None


class JobCallback(TrainerCallback):
    """Writes metrics and publishes checkpoints; ends the run on request, or on a loss that is no number."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _any_process(self.run.is_stopped()):
            control.should_save = control.should_training_stop = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        logs = logs or {}
        if not state.is_world_process_zero or not ("loss" in logs or "eval_loss" in logs):
            return
        row: dict[str, Any] = {"step": state.global_step, "total_steps": state.max_steps}
        if "eval_loss" in logs:
            row["valid_loss"] = logs["eval_loss"]
            row |= {f"valid_{ours}": logs[f"eval_{its}"] for its, ours in self.run.measures.items()
                    if f"eval_{its}" in logs}  # fmt: skip
            self.run.metrics.add(row)
            return
        if not math.isfinite(logs["loss"]):
            raise _not_finite(self.run.output, state.global_step)
        row |= {"train_loss": logs["loss"], "learning_rate": logs.get("learning_rate", 0.0)}
        row["tokens"] = int(logs.get("num_tokens", 0))
        row |= {ours: logs[its] for its, ours in self.run.measures.items() if its in logs}
        self.run.metrics.add(row)
        shown = " ".join(f"{name} {row[name]:.4f}" for name in ("train_loss", *self.run.measures.values())
                         if name in row)  # fmt: skip
        note(f"step {state.global_step}/{state.max_steps} {shown}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        arguments, step = self.run.arguments, state.global_step
        made = Path(args.output_dir) / f"checkpoint-{step}"
        if not made.exists():
            return
        content = {"identity": self.run.identity(), "total": state.max_steps}
        place = publish(made, self.run.output, step, content)
        keep_newest(self.run.output, arguments.save_total_limit, arguments.save_keep_every)
        note(f"checkpoint {place}")


def _any_process(is_stopped: bool) -> bool:
    """Return whether a stop is requested of any process; the same in all."""
    if not torch.distributed.is_initialized():
        return is_stopped
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = torch.tensor([float(is_stopped)], device=device)
    torch.distributed.all_reduce(asked)
    return bool(asked.item())


def _not_finite(output: Path, step: int) -> RecipeError:
    found = newest_whole(output)
    last = f"The last good checkpoint is {found.path}" if found else "There is no checkpoint before it"
    return RecipeError(
        f"training stopped: at step {step} the loss is not a finite number; lower learning_rate. {last}"
    )


def carry_out(run: Run, trainer: Any, tokenizer: Any) -> int:
    """Train from the newest checkpoint to the end, and write the result; or stop, with a checkpoint."""
    trainer.remove_callback(transformers.PrinterCallback)  # JobCallback writes what matters
    found = run.find()
    is_first = trainer.is_world_process_zero()
    if is_first:
        shutil.rmtree(run.output / WORK, ignore_errors=True)  # what was left half written
        run.metrics.keep_until(found.step if found else 0)
        if found:
            note(f"resuming from {found.path} at step {found.step}")
    try:
        trainer.train(resume_from_checkpoint=str(found.path) if found else None)
    except RuntimeError as error:
        if "probability tensor" not in str(error):  # the next token cannot be drawn from what is no number
            raise
        raise _not_finite(run.output, trainer.state.global_step) from error
    state = trainer.state
    if state.global_step < state.max_steps:
        if is_first:
            note(f"stopped at step {state.global_step}; run the same command again to continue")
        return EXIT_STOPPED
    if is_first:
        note(f"{export(run, trainer, tokenizer)}: written after step {state.global_step}")
    return EXIT_OK


def export(run: Run, trainer: Any, tokenizer: Any) -> Path:
    """Write the adapter, or the whole model, with its tokenizer and a description of the run."""
    arguments = run.arguments
    target = run.output / ("adapter" if arguments.lora else "model")
    partial = run.output / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if arguments.lora:
        model.save_pretrained(partial, save_embedding_layers=False)
    else:
        save_whole(model, arguments.model, partial)
    tokenizer.save_pretrained(partial)
    seconds = next(
        (row["train_runtime"] for row in reversed(trainer.state.log_history) if "train_runtime" in row), 0
    )
    summary = {
        "step": trainer.state.global_step,
        "seconds": seconds,
        "tokens": int(trainer.state.num_input_tokens_seen or 0),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "precision": "bf16" if trainer.args.bf16 else "fp16" if trainer.args.fp16 else "no",
        "arguments": vars(arguments),
    }
    (partial / "training_summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    shutil.rmtree(run.output / WORK, ignore_errors=True)
    return target
