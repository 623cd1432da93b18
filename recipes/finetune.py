#!/usr/bin/env python3
"""Fine-tune a language model, by LoRA or all its weights, on tokenised conversations.

Runs alone (`python3 finetune.py ...`) or as many processes (`torchrun finetune.py ...`), on CPUs
or GPUs. It writes checkpoints, resumes from the newest complete one when started again with the
same output folder, and on SIGTERM finishes its step, writes a checkpoint and exits with 75.
It is a plain loop instead of `transformers.Trainer`: the order of the data, the number of steps
and the moment of a checkpoint are visible here, and exact after a resume.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import Checkpoint, CheckpointWriter, newest_whole, path_of, set_aside
from recipe_errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_STOPPED,
    RecipeError,
    exit_code,
    needed_packages,
    note,
    report,
)
from training_arguments import (
    TrainingArguments,
    create_training_arguments,
    explain,
    parse_overrides,
    require_places,
)
from training_metrics import MetricsFile

with needed_packages():
    import torch

    import training_state
    from chat_tokens import load_tokenizer
    from lora_model import load_base, to_train
    from precision import name_of, precision
    from step_times import StepTimes
    from stored_model import save_whole
    from tokenized_data import TokenizedData
    from training_progress import Progress
    from training_schedule import learning_rate_factor, total_steps
    from training_step import TrainingStep
    from training_validation import EarlyStop, Validation
    from workers import Workers


class StopRequest:
    """A flag that SIGTERM sets; the run checks it between two steps."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> StopRequest:
        self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, *_: object) -> None:
        self.asked = True


class NotFinite(Exception):
    """The loss or a gradient of a step is not a number; every process raises it at the same step."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass
class Run:
    """The parts of a run."""

    arguments: TrainingArguments
    workers: Workers
    step: TrainingStep
    progress: Progress
    writer: CheckpointWriter
    metrics: MetricsFile
    times: StepTimes
    validation: Validation | None
    early: EarlyStop
    stop: StopRequest

    def identity(self) -> dict[str, Any]:
        """Return the settings that must not change between a checkpoint and its resumption."""
        names = ("model", "seed", "lora_r", "lora_alpha", "target_modules", "modules_to_save")
        chosen = {name: getattr(self.arguments, name) for name in names}
        chosen |= {} if self.arguments.lora else {"lora": False}  # checkpoints of earlier releases have none
        data = self.step.data
        return {**chosen, "rows": len(data), "tokens": data.facts["tokens"]}

    def asked(self) -> list[float]:
        return [self.arguments.num_train_epochs, self.arguments.max_steps]


def find_checkpoint(arguments: TrainingArguments, workers: Workers) -> Checkpoint | None:
    """Return the newest complete checkpoint in the output folder, the same in every process."""
    return workers.from_first(newest_whole(Path(arguments.output_dir)) if workers.is_first else None)


def choose_precision(
    arguments: TrainingArguments, workers: Workers, found: Checkpoint | None
) -> torch.dtype | None:
    """Return the same type in every process and, on CPUs, after a resume: each may measure another."""
    wanted = arguments.mixed_precision
    if wanted == "auto" and found is not None and workers.device.type == "cpu":
        wanted = found.state.get("precision", "no")  # earlier releases computed in float32
    return workers.from_first(precision(wanted))


def prepare(
    arguments: TrainingArguments, workers: Workers, stop: StopRequest, found: Checkpoint | None
) -> Run:
    """Load data and model; every process does the same with the same seed."""
    data = TokenizedData.open(Path(arguments.data))
    dtype = choose_precision(arguments, workers, found)
    torch.manual_seed(arguments.seed)
    if arguments.load_in_4bit and not arguments.lora:
        raise RecipeError("weights of 4 bits cannot be trained; set load_in_4bit to false, or lora to true")
    # All weights are trained in float32: small updates are lost in 16 bits.
    base = load_base(arguments.model, dtype if arguments.lora else None, arguments.load_in_4bit)
    if data.facts["vocab_size"] > base.get_input_embeddings().num_embeddings:
        raise RecipeError(
            f"{arguments.data} was tokenised for {data.facts['model']}, whose vocabulary is larger"
            f" than that of {arguments.model}; run dataset_tokenize.py with this model"
        )
    step = TrainingStep(arguments, workers, data, to_train(base, arguments), dtype)
    total = total_steps(len(data), arguments.num_train_epochs, arguments.max_steps, step.samples)
    writer = CheckpointWriter(
        Path(arguments.output_dir), arguments.save_total_limit, arguments.save_keep_every
    )
    metrics = MetricsFile(Path(arguments.output_dir) / "metrics.jsonl")
    validation = Validation.of(arguments) if workers.is_first else None
    if workers.is_first:
        size = sum(weight.numel() for weight in step.trainable)
        kind = {"no": "float32"}.get(name_of(dtype), name_of(dtype))
        note(
            f"{len(data)} rows, {size / 1e6:.2f}M weights to train, {workers.world_size} processes,"
            f" computed in {kind}"
        )
    times = StepTimes.of(workers.rank)
    early = EarlyStop(arguments.early_stopping_patience)
    return Run(arguments, workers, step, Progress(total), writer, metrics, times, validation, early, stop)


def resume(run: Run, found: Checkpoint | None) -> None:
    """Continue from the checkpoint, if there is one."""
    if run.workers.is_first:
        run.metrics.keep_until(found.step if found else 0)
    if found is None:
        return
    training_state.check_same_run(run.identity(), found)
    training_state.load(found.path, run.step)
    run.early.resume(found.state.get("early", {}))
    run.progress.resume(found.step, found.state["position"], found.state.get("tokens", 0))
    if found.state["asked"] == run.asked():
        run.progress.total = found.state["total"]  # even if there are more or fewer processes now
    if run.workers.is_first:
        note(f"resuming from {found.path} at step {found.step} of {run.progress.total}")


def train(run: Run) -> bool:
    """Run to the last step, or until the validation loss no longer falls, and return True; or until a stop is
    requested and return False."""
    arguments, progress = run.arguments, run.progress
    progress.start()
    while progress.step < progress.total and not is_over(run):
        rate = arguments.learning_rate * learning_rate_factor(
            progress.step, progress.total, arguments.lr_scheduler_type, arguments.warmup_ratio
        )
        result = run.step.run(progress.step, progress.position, rate, run.stop.asked)
        if result is None:
            break
        if not result.is_finite:
            raise NotFinite(progress.step + 1)
        run.times.add(progress.step, result)
        progress.add(result, run.step.samples)
        if progress.step % arguments.logging_steps == 0 or progress.step == progress.total:
            progress.settle(run.workers)
            if run.workers.is_first:
                note(progress.line(rate))
                run.metrics.add(progress.facts(rate))
        if arguments.save_steps and progress.step % arguments.save_steps == 0:
            save(run)
    progress.finish()
    save(run)
    run.writer.wait()
    run.workers.wait_for_all()  # one that leaves early gets the others killed while they write
    return progress.step == progress.total or is_over(run)


def is_over(run: Run) -> bool:
    """Return whether the validation loss no longer falls; the same in every process."""
    if not run.arguments.early_stopping_patience:
        return False
    return bool(run.workers.from_first(run.early.is_over))


def save(run: Run) -> None:
    """Pass a copy of the state to the background writer, unless this step is saved already."""
    progress = run.progress
    if not run.workers.is_first or progress.step == progress.saved_step:
        return
    if run.validation is not None:
        loss = run.validation.loss(run.step)
        run.metrics.add({"step": progress.step, "total_steps": progress.total, "valid_loss": loss})
        run.early.add(progress.step, loss)
    started = time.monotonic()
    state = {
        "position": progress.position,
        "tokens": progress.all_tokens,
        "total": progress.total,
        "asked": run.asked(),
        "identity": run.identity(),
        "precision": name_of(run.step.dtype),
        "early": run.early.state(),
    }
    best = run.early.best_step if run.early.patience else 0
    run.writer.save(progress.step, state, training_state.snapshot(run.step), best)
    progress.saved(time.monotonic() - started)


def report_not_finite(run: Run, step: int) -> None:
    """Say in which step the loss was no longer a number, and which checkpoint is good.

    A checkpoint of the step just before has the weights that this step failed with: it is set aside.
    """
    run.writer.wait()
    folder = Path(run.arguments.output_dir)
    newest = newest_whole(folder)
    if newest is not None and newest.step == step - 1:
        place = set_aside(newest)
        note(f"{newest.path}: its weights gave this loss; it is now {place}")
        newest = newest_whole(folder)
    last = f"the last good checkpoint is {newest.path}" if newest else "there is no good checkpoint before it"
    report(
        RecipeError(
            f"training stopped: in step {step} the loss or a gradient is not a finite number; {last}",
            "lower learning_rate, or check the data; the same command then continues from that checkpoint",
        )
    )


def take_best(run: Run) -> None:
    """Load the weights with the lowest validation loss, where the run may end early."""
    best = path_of(Path(run.arguments.output_dir), run.early.best_step)
    if not run.early.patience or run.early.best_step == run.progress.step or not best.is_dir():
        return
    if run.early.is_over:
        note(
            f"stopped early at step {run.progress.step}: the validation loss was not lower at"
            f" {run.early.worse} checkpoints"
        )
    training_state.load(best, run.step)
    note(f"the result is that of step {run.early.best_step}, with the lowest validation loss")


def export(run: Run) -> Path:
    """Write the finished adapter, or the whole model, with its tokenizer and a description of the run."""
    output = Path(run.arguments.output_dir)
    target = output / ("adapter" if run.arguments.lora else "model")
    partial = output / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if run.arguments.lora:
        for name, write in training_state.adapter_files(run.step.model).items():
            write(partial / name)
    else:
        save_whole(run.step.model, run.arguments.model, partial)
    load_tokenizer(run.arguments.model).save_pretrained(partial)
    summary = {**run.progress.summary(), "processes": run.workers.world_size}
    summary["precision"] = name_of(run.step.dtype)
    text = json.dumps(summary | {"arguments": vars(run.arguments)}, indent=1)
    (partial / "training_summary.json").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target


def finetune(arguments: TrainingArguments) -> int:
    with StopRequest() as stop:
        workers = Workers.join()
        try:
            found = find_checkpoint(arguments, workers)
            run = prepare(arguments, workers, stop, found)
            try:
                return carry_out(run, found)
            finally:
                run.times.close()
                run.step.close()
        finally:
            workers.leave()


def carry_out(run: Run, found: Checkpoint | None) -> int:
    resume(run, found)
    is_first = run.workers.is_first
    try:
        finished = train(run)
    except NotFinite as failure:
        if is_first:
            report_not_finite(run, failure.step)
        run.workers.wait_for_all()  # torchrun ends the others as soon as one has failed
        return EXIT_FAILED
    if finished and is_first:
        take_best(run)
        place = export(run)
        note(f"{place}: {place.name} written after step {run.progress.step}")
    elif is_first:
        note(f"stopped at step {run.progress.step}; run the same command again to continue")
    return EXIT_OK if finished else EXIT_STOPPED


def run_script(args: argparse.Namespace) -> int:
    if args.explain_config:
        print(explain())
        return EXIT_OK
    given = {"model": args.model, "data": args.data, "output_dir": args.output_dir}
    arguments = create_training_arguments(args.config, {**parse_overrides(args.set), **given})
    require_places(arguments)
    return finetune(arguments)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune a language model on tokenised conversations.",
        epilog="examples:\n"
        "  python3 finetune.py --config config.json --model Qwen/Qwen3-8B \\\n"
        "      --data chats_train.arrow --output-dir run1\n"
        "  torchrun --nproc-per-node 2 finetune.py --config config.json --set max_steps=200\n"
        "exit codes: 0 finished; 1 failed, the message says why; 2 wrong usage;\n"
        "  75 stopped by SIGTERM with a checkpoint: run the same command again to continue",
    )
    parser.add_argument("--config", type=Path, help="JSON file; see --explain-config")
    parser.add_argument("--model", help="base model: local folder or hub id")
    parser.add_argument("--data", help="file made by dataset_tokenize.py")
    parser.add_argument("--output-dir", help="folder for checkpoints and the adapter")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument("--explain-config", action="store_true", help="print all keys and stop")
    return parser


def main(argv: list[str] | None = None) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return exit_code(run_script, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
