#!/usr/bin/env python3
"""Run a fine-tuning job in one folder: check the data, split, train, evaluate, pack the result.

    python3 tuning_job.py JOB_FOLDER [--until STEP]

`JOB_FOLDER/job.json` holds the settings. Each step is one of the other recipes, run as a process of its own,
and is skipped when its output exists: a job that is started again continues where it was. Progress is in
`events.jsonl` (what happened), `log.txt` (the output of the steps) and, at the end, `outcome.json`:
succeeded, stopped (by SIGTERM, with a checkpoint) or failed with one line that says why. It must not decide
settings: they are in job.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conversations import atomic_text
from job_record import ADAPTER, trained
from method_rows import DPO, REINFORCEMENT, SUPERVISED
from recipe_errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED, RecipeError, exit_code, note
from tuning_result import pack_result

CODE = Path(__file__).parent
GRADER = "grader.json"
TRAINERS = {SUPERVISED: "finetune.py", DPO: "preference.py", REINFORCEMENT: "reinforcement.py"}
SIGNAL_AGAIN_SECONDS = 60.0
_REASON = re.compile(r"^\w+\.py: error: (?P<text>.+)$")
_LINE = re.compile(r"^.*?(?:: )?(?:line|row) (?P<number>\d+): ")


class StepFailed(Exception):
    """A step has failed. `param` is the part of the job that caused it, "" where none did."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(message)
        self.code, self.param = step.blame


class Stopped(Exception):
    """SIGTERM was received, and the step has saved its progress."""


class Requeued(Exception):
    """A node was lost, and Slurm starts the job again: no outcome."""


@dataclass(frozen=True)
class Step:
    name: str
    makes: Path
    command: list[str]
    blame: tuple[str, str] = ("training_failed", "")
    output: Path | None = None
    """The file for its standard output, under another name until it is complete."""
    program: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    reports: str = ""
    """The beginning of the lines of its output that are events of the job."""


class Job:
    """The folder, its settings, and the process that runs now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.settings: Mapping[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(f"{folder / 'job.json'}: broken JSON ({error})") from error
        self.method: str = self.settings.get("method", SUPERVISED)
        self._process: subprocess.Popen[str] | None = None
        self._is_stopping = False
        self._signalled_at = float("-inf")

    def add_event(self, message: str, level: str = "info") -> None:
        self._append("events.jsonl", {"time": time.time(), "level": level, "message": message})

    def end(self, state: str, **details: Any) -> None:
        """Write the outcome of this attempt, completely or not at all."""
        with atomic_text(self.folder / "outcome.json") as file:
            json.dump({"attempt": self.settings.get("attempt", 1), "state": state, **details}, file)

    def stop(self, *_: object) -> None:
        """Pass SIGTERM on, but not often: torchrun abandons its workers when it is signalled again."""
        self._is_stopping = True
        if self._process is not None and time.monotonic() - self._signalled_at > SIGNAL_AGAIN_SECONDS:
            self._signalled_at = time.monotonic()
            self._process.terminate()

    def run(self, step: Step) -> None:
        """Return when the output of the step exists."""
        if self._is_stopping:
            raise Stopped
        if step.makes.exists():
            return
        reason, code = self._run_process(step)
        if self._is_stopping and code:
            raise Stopped
        if code:
            raise StepFailed(step, reason or _unexplained(step, code))
        if not step.makes.exists():
            raise Requeued

    def _run_process(self, step: Step) -> tuple[str, int]:
        partial = step.output.with_name(f".{step.output.name}.partial") if step.output else None
        target = partial.open("w", encoding="utf-8") if partial else None
        reason = ""
        process = subprocess.Popen(
            [step.program, *step.command],
            env=os.environ | step.environment,
            stdout=target or subprocess.PIPE,
            stderr=subprocess.PIPE if target else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log, process:
            self._process = process
            if self._is_stopping:  # the signal arrived while it was being started
                process.terminate()
            for line in process.stderr or process.stdout or ():
                log.write(line)
                log.flush()
                print(line, end="", flush=True)
                if (found := _REASON.match(line.strip())) and not reason:
                    reason = found["text"]
                if step.reports and line.startswith(step.reports):
                    self.add_event(line.removeprefix(step.reports).strip())
        code, self._process = process.returncode, None
        if target and partial and step.output:
            target.close()
            if code == 0:
                partial.replace(step.output)
        return reason, code

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _unexplained(step: Step, code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"{step.name} was ended by {name}: most likely it ran out of memory; use a larger preset"
    return f"{step.name} ended with exit code {code}; see the job's log"


def steps(job: Job) -> list[Step]:
    folder, settings, method = job.folder, job.settings, job.method
    chats, train, test = (folder / f"chats{part}.jsonl" for part in ("", "_train", "_test"))
    if method == REINFORCEMENT:
        with atomic_text(folder / GRADER) as file:
            json.dump(settings["grader"], file)
    found = [_check(job, "training_file", chats)]
    if (folder / "validation_file.jsonl").exists():
        compared = ("--training", str(train))
        found = [_check(job, "training_file", train), _check(job, "validation_file", test, *compared)]
    else:
        found.append(
            Step(
                "Split off a tenth", test,
                [_script("dataset_split.py"), str(chats), "--ratio", "0.9", "--rand-sort",
                 "--seed", str(settings["seed"]), *_method(job)],
                ("invalid_training_file", "training_file"),
            )
        )  # fmt: skip
    output = folder / "finetune"
    if method == SUPERVISED:
        for part, blame in ((train, "training_file"), (test, "validation_file")):
            found.append(_tokenize(job, part, f"invalid_{blame}", blame))
        train_rows, test_rows = train.with_suffix(".arrow"), test.with_suffix(".arrow")
        found.append(_training(job, train_rows, test_rows, output))
    else:
        found.append(_training(job, train, test, output))
    found.append(_evaluation(job, test, output / trained(settings)))
    if settings["merge"] and trained(settings) == ADAPTER:
        merge = ["--model", settings["model"], "--adapter", str(output / "adapter")]
        merged = folder / "merged"
        found.append(Step("Merge", merged, [_script("merge_adapter.py"), *merge, "--output", str(merged)]))
    return found


def _script(name: str) -> str:
    return str(CODE / name)


def _check(job: Job, param: str, output: Path, *options: str) -> Step:
    source = job.folder / f"{param}.jsonl"
    command = [_script("dataset_convert.py"), str(source), "--output", str(output), *options, *_method(job)]
    command += ["--grader", str(job.folder / GRADER)] if job.method == REINFORCEMENT else []
    command += ["--refuse-personal-data"] if job.settings.get("refuse_personal_data") else []
    name, blame = f"Check the {param.replace('_', ' ')}", (f"invalid_{param}", param)
    return Step(name, output, command, blame, reports=f"{source}: ")


def _tokenize(job: Job, part: Path, code: str, param: str) -> Step:
    command = [_script("dataset_tokenize.py"), str(part), "--model", job.settings["model"]]
    command += ["--context", str(job.settings["context"]), "--workers", str(job.settings["cpus"])]
    packing = ["--pack"] if job.settings["packing"] else []
    return Step(f"Tokenise {part.name}", part.with_suffix(".arrow"), [*command, *packing], (code, param))


def _training(job: Job, train: Path, test: Path, output: Path) -> Step:
    (job.folder / "config.json").write_text(
        json.dumps({**job.settings["arguments"], "validation_data": str(test)}), encoding="utf-8"
    )
    if job.settings.get("nodes", 1) > 1:
        return _training_on_nodes(job, output)
    command = [_script(TRAINERS[job.method]), "--config", str(job.folder / "config.json")]
    command += ["--model", job.settings["model"], "--data", str(train), "--output-dir", str(output)]
    command += ["--grader", str(job.folder / GRADER)] if job.method == REINFORCEMENT else []
    processes = job.settings["processes"]
    if processes > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*launch, *command]
    return Step("Train", output / trained(job.settings), command)


def _method(job: Job) -> list[str]:
    return [] if job.method == SUPERVISED else ["--method", job.method]


def _training_on_nodes(job: Job, output: Path) -> Step:
    """Train on the nodes of the Slurm job that this runs in; the script reads chats_train.arrow in OUT."""
    variables = {
        "CODE": str(CODE), "OUT": str(job.folder), "MODEL": job.settings["model"],
        "CONFIG": str(job.folder / "config.json"),
    }  # fmt: skip
    script = [_script("finetune_distributed.sbatch")]
    return Step("Train", output / trained(job.settings), script, program="bash", environment=variables)


def _evaluation(job: Job, test: Path, tuned: Path) -> Step:
    kind = "--adapter" if tuned.name == ADAPTER else "--finetuned"
    flags = ["--model", job.settings["model"], kind, str(tuned), "--data", str(test)]
    flags += ["--samples", str(job.settings["samples"])]
    report = job.folder / "report.json"
    if job.method == REINFORCEMENT:
        longest = job.settings["arguments"]["max_completion_length"]
        flags += ["--grader", str(job.folder / GRADER), "--max-new-tokens", str(longest)]
        return Step("Evaluate", report, [_script("reward_evaluator.py"), *flags], output=report)
    flags += ["--context", str(job.settings["context"]), *_method(job)]
    flags += ["--accuracy"] if job.settings.get("accuracy") else []
    return Step("Evaluate", report, [_script("evaluator.py"), *flags], output=report)


def run_steps(job: Job, until: str | None) -> int:
    for step in steps(job):
        if step.name == until:
            return EXIT_OK
        if not step.makes.exists():
            job.add_event(f"{step.name}.")
        job.run(step)
    result = pack_result(job.folder, job.settings)
    job.end("succeeded", **result)
    job.add_event("Training and evaluation are done.")
    return EXIT_OK


def guarded(job: Job, work: Callable[[], int]) -> int:
    try:
        return work()
    except Stopped:
        job.end("stopped")
        saved = max((path.name for path in job.folder.glob("finetune/checkpoint-[0-9]*")), default="")
        job.add_event(
            f"Stopped; it continues from {saved}." if saved else "Stopped, before the first checkpoint."
        )
        return EXIT_STOPPED
    except Requeued:
        job.add_event("A node was lost; Slurm starts the job again, from the newest checkpoint.", "warn")
        return EXIT_STOPPED
    except StepFailed as failed:
        line = _LINE.match(str(failed)) if failed.param else None
        message = _without_paths(str(failed), job.folder, failed.param)
        number = int(line["number"]) if line else 0
        job.end("failed", code=failed.code, param=failed.param, message=message, line=number)
        job.add_event(message, "error")
        return EXIT_FAILED


def _without_paths(text: str, folder: Path, param: str) -> str:
    """Return the message without paths, which users of the job do not know."""
    return text.replace(f"{folder}/{param}.jsonl: " if param else "", "").replace(f"{folder}/", "")


def run(args: argparse.Namespace) -> int:
    job = Job(args.folder)
    signal.signal(signal.SIGTERM, job.stop)
    note(f"{args.folder}: attempt {job.settings.get('attempt', 1)}")
    return guarded(job, lambda: run_steps(job, args.until))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the fine-tuning job of a folder.")
    parser.add_argument("folder", type=Path, help="folder with job.json and training_file.jsonl")
    parser.add_argument("--until", metavar="STEP", help='stop before this step, for example "Train"')
    return exit_code(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
