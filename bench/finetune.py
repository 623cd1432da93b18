#!/usr/bin/env python3
"""Measure the fine-tuning recipes on this machine and print ratios.

Three questions, each answered by runs of recipes/finetune.py in turn, so that a change in the load
of the machine hits both sides: how much faster is packing than padding the same conversations,
how much faster are two processes than one, and how long does a checkpoint hold up a step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"
CONTEXT = 256
PACKED_ROWS = 8  # per optimiser step, over all processes


@dataclass(frozen=True)
class Case:
    """One way to run the same data."""

    name: str
    data: Path
    processes: int
    rows_per_step: int
    save_steps: int = 0


def python(script: str, *arguments: str | Path) -> None:
    call([sys.executable, str(RECIPES / script), *map(str, arguments)])


def call(command: list[str]) -> None:
    """Run quietly on one thread per process; on failure show the output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def prepare(folder: Path, data: Path | None) -> tuple[Path, Path, Path]:
    """Make base model, packed rows and one row per conversation from one data file."""
    if data is None:
        data = folder / "bank.csv"
        python("make_dataset.py", "--output", data)
    chats, model = folder / "chats.jsonl", folder / "base_model"
    python("dataset_convert.py", data, "--output", chats)
    python("make_base_model.py", chats, "--output", model, "--max-steps", "5")
    packed, plain = folder / "packed.arrow", folder / "plain.arrow"
    tokenize = ("dataset_tokenize.py", chats, "--model", model, "--context", str(CONTEXT))
    python(*tokenize, "--output", packed, "--pack")
    python(*tokenize, "--output", plain)
    return model, packed, plain


def measure(case: Case, model: Path, folder: Path, steps: int, number: int) -> dict[str, float]:
    """Fine-tune for some steps; return the summary that the run wrote."""
    output = folder / f"{case.name}-{number}".replace(" ", "_")
    launcher = [sys.executable]
    if case.processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.processes}"]
    settings = {
        "max_steps": steps,
        "per_device_train_batch_size": case.rows_per_step // case.processes,
        "save_steps": case.save_steps,
        "modules_to_save": '["embed_tokens","lm_head"]',
        "learning_rate": 0.001,
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    places = ["--model", str(model), "--data", str(case.data), "--output-dir", str(output)]
    call([*launcher, str(RECIPES / "finetune.py"), *places, *flags])
    return json.loads((output / "adapter" / "training_summary.json").read_text(encoding="utf-8"))


def mean_length(plain: Path) -> float:
    """Return the mean tokens of a conversation in the tokenised file."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from tokenized_data import TokenizedData;"
        "data = TokenizedData.open(Path(sys.argv[2])); print(data.facts['tokens'] / len(data))"
    )
    command = [sys.executable, "-c", script, str(RECIPES), str(plain)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report(cases: list[Case], found: dict[str, list[dict[str, float]]]) -> None:
    speed = {
        case.name: statistics.median(run["tokens_per_second"] for run in found[case.name]) for case in cases
    }
    for case in cases:
        print(f"{case.name:<28}{speed[case.name]:>10,.0f} tokens/s")
    print()
    print(f"packed against padded        {speed['packed'] / speed['padded']:>10.2f} x")
    print(f"2 processes against 1        {speed['packed, 2 processes'] / speed['packed']:>10.2f} x")
    saving = found["packed, with checkpoints"]
    stall = statistics.median(run["checkpoint_stall_seconds"] / run["checkpoints"] for run in saving)
    step = statistics.median(run["seconds"] / (run["step"] - run["resumed_from"]) for run in saving)
    print(f"stall of a checkpoint        {100 * stall / step:>10.1f} % of a step ({stall * 1000:.1f} ms)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the fine-tuning recipes; print ratios.")
    parser.add_argument("--data", type=Path, help="any file dataset_convert.py reads (default: bank data)")
    parser.add_argument("--steps", type=int, default=30, help="optimiser steps per run (default 30)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default 3)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-finetune-") as name:
        folder = Path(name)
        model, packed, plain = prepare(folder, args.data)
        padded_rows = max(2, round(PACKED_ROWS * CONTEXT / mean_length(plain)))
        cases = [
            Case("padded", plain, 1, padded_rows),
            Case("packed", packed, 1, PACKED_ROWS),
            Case("packed, 2 processes", packed, 2, PACKED_ROWS),
            Case("packed, with checkpoints", packed, 1, PACKED_ROWS, save_steps=5),
        ]
        found: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
        for number in range(args.repeats):
            for case in cases:
                found[case.name].append(measure(case, model, folder, args.steps, number))
    cpus = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cpus} CPUs, one thread per process, {args.repeats} runs each\n")
    report(cases, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
