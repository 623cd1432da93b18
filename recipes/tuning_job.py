#!/usr/bin/env python3
"""A whole fine-tuning job in one folder: check the data, split, tokenise, train, evaluate, pack the result.

    python3 tuning_job.py JOB_FOLDER [--until STEP]

`JOB_FOLDER/job.json` says what is wanted. Each step is one of the other recipes, run as a process of its own,
and is passed over when what it makes is there: started again, the job goes on where it was. For whoever
watches, it keeps `events.jsonl` (what happened), `log.txt` (all that the steps wrote) and, at its end,
`outcome.json`: succeeded, stopped (by SIGTERM, with a checkpoint) or failed with one line that says why.
It must not decide settings: they are in job.json.
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
from recipe_errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED, RecipeError, exit_code, note
from tuning_result import pack_result

CODE = Path(__file__).parent
TELL_AGAIN_SECONDS = 60.0
_REASON = re.compile(r"^\w+\.py: error: (?P<text>.+)$")
_LINE = re.compile(r"^.*?(?:: )?(?:line|row) (?P<number>\d+): ")
_FLAG_ADVICE = re.compile(r"[;.] (?:Repair it, or )?pass --.*$")


class StepFailed(Exception):
    """A step ended badly. `param` is the part of the job that is to blame, "" where none is."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(message)
        self.code, self.param = step.blame


class Stopped(Exception):
    """SIGTERM has come, and the step has saved what it had."""


class Requeued(Exception):
    """A node was lost, and Slurm starts the job again: no outcome."""


@dataclass(frozen=True)
class Step:
    name: str
    makes: Path
    command: list[str]
    blame: tuple[str, str] = ("training_failed", "")
    output: Path | None = None
    """Where its standard output goes, under another name until it is whole."""
    program: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


class Job:
    """The folder, what is wanted, and the process that runs now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.wanted: Mapping[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(f"{folder / 'job.json'}: broken JSON ({error})") from error
        self._process: subprocess.Popen[str] | None = None
        self._is_stopping = False
        self._told = float("-inf")

    def tell(self, message: str, level: str = "info") -> None:
        self._append("events.jsonl", {"time": time.time(), "level": level, "message": message})

    def end(self, state: str, **facts: Any) -> None:
        """The outcome of this attempt; written whole or not at all."""
        with atomic_text(self.folder / "outcome.json") as file:
            json.dump({"attempt": self.wanted.get("attempt", 1), "state": state, **facts}, file)

    def stop(self, *_: object) -> None:
        """May be asked often; the process is told seldom: a hurried torchrun gives up its workers."""
        self._is_stopping = True
        if self._process is not None and time.monotonic() - self._told > TELL_AGAIN_SECONDS:
            self._told = time.monotonic()
            self._process.terminate()

    def run(self, step: Step) -> None:
        """Returns when what the step makes is there."""
        if self._is_stopping:
            raise Stopped
        if step.makes.exists():
            return
        reason, code = self._carry_out(step)
        if self._is_stopping and code:
            raise Stopped
        if code:
            raise StepFailed(step, reason or _unexplained(step, code))
        if not step.makes.exists():
            raise Requeued

    def _carry_out(self, step: Step) -> tuple[str, int]:
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
            if self._is_stopping:  # the signal came while it was being started
                process.terminate()
            for line in process.stderr or process.stdout or ():
                log.write(line)
                log.flush()
                print(line, end="", flush=True)
                if (found := _REASON.match(line.strip())) and not reason:
                    reason = found["text"]
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
        return (
            f"{step.name} was ended by {name}: most likely the memory did not suffice; take a larger preset"
        )
    return f"{step.name} ended with exit code {code}; the job's log says more"


def steps(job: Job) -> list[Step]:
    folder, wanted = job.folder, job.wanted
    chats, train, test = (folder / f"chats{part}.jsonl" for part in ("", "_train", "_test"))
    found = [_check(job, "training_file", chats)]
    if (folder / "validation_file.jsonl").exists():
        found = [_check(job, "training_file", train), _check(job, "validation_file", test)]
    else:
        found.append(
            Step(
                "Hold a tenth out", test,
                [_script("dataset_split.py"), str(chats), "--ratio", "0.9", "--rand-sort",
                 "--seed", str(wanted["seed"])],
                ("invalid_training_file", "training_file"),
            )
        )  # fmt: skip
    for part, blame in ((train, "training_file"), (test, "validation_file")):
        found.append(_tokenize(job, part, f"invalid_{blame}", blame))
    train_rows, test_rows = train.with_suffix(".arrow"), test.with_suffix(".arrow")
    output = folder / "finetune"
    found.append(_training(job, train_rows, test_rows, output))
    found.append(_evaluation(job, test, output / "adapter"))
    if wanted["merge"]:
        merge = ["--model", wanted["model"], "--adapter", str(output / "adapter")]
        merged = folder / "merged"
        found.append(Step("Merge", merged, [_script("merge_adapter.py"), *merge, "--output", str(merged)]))
    return found


def _script(name: str) -> str:
    return str(CODE / name)


def _check(job: Job, param: str, output: Path) -> Step:
    source = job.folder / f"{param}.jsonl"
    command = [_script("dataset_convert.py"), str(source), "--output", str(output)]
    return Step(f"Check the {param.replace('_', ' ')}", output, command, (f"invalid_{param}", param))


def _tokenize(job: Job, part: Path, code: str, param: str) -> Step:
    command = [_script("dataset_tokenize.py"), str(part), "--model", job.wanted["model"]]
    command += ["--context", str(job.wanted["context"]), "--workers", str(job.wanted["cpus"])]
    packing = ["--pack"] if job.wanted["packing"] else []
    return Step(f"Tokenise {part.name}", part.with_suffix(".arrow"), [*command, *packing], (code, param))


def _training(job: Job, train: Path, test: Path, output: Path) -> Step:
    (job.folder / "config.json").write_text(
        json.dumps({**job.wanted["arguments"], "validation_data": str(test)}), encoding="utf-8"
    )
    if job.wanted.get("nodes", 1) > 1:
        return _training_on_nodes(job, output)
    command = [_script("finetune.py"), "--config", str(job.folder / "config.json")]
    command += ["--model", job.wanted["model"], "--data", str(train), "--output-dir", str(output)]
    processes = job.wanted["processes"]
    if processes > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*launch, *command]
    return Step("Train", output / "adapter", command)


def _training_on_nodes(job: Job, output: Path) -> Step:
    """Those of the Slurm job that this runs in, by the script for them; it reads chats_train.arrow in OUT."""
    variables = {
        "CODE": str(CODE), "OUT": str(job.folder), "MODEL": job.wanted["model"],
        "CONFIG": str(job.folder / "config.json"),
    }  # fmt: skip
    script = [_script("finetune_distributed.sbatch")]
    return Step("Train", output / "adapter", script, program="bash", environment=variables)


def _evaluation(job: Job, test: Path, adapter: Path) -> Step:
    flags = ["--model", job.wanted["model"], "--adapter", str(adapter), "--data", str(test)]
    flags += ["--context", str(job.wanted["context"]), "--samples", str(job.wanted["samples"])]
    report = job.folder / "report.json"
    return Step("Evaluate", report, [_script("evaluator.py"), *flags], output=report)


def carry_out(job: Job, until: str | None) -> int:
    for step in steps(job):
        if step.name == until:
            return EXIT_OK
        if not step.makes.exists():
            job.tell(f"{step.name}.")
        job.run(step)
    result = pack_result(job.folder, job.wanted)
    job.end("succeeded", **result)
    job.tell("Training and evaluation are done.")
    return EXIT_OK


def guarded(job: Job, work: Callable[[], int]) -> int:
    try:
        return work()
    except Stopped:
        job.end("stopped")
        saved = max((path.name for path in job.folder.glob("finetune/checkpoint-[0-9]*")), default="")
        job.tell(f"Stopped; it goes on from {saved}." if saved else "Stopped, before the first checkpoint.")
        return EXIT_STOPPED
    except Requeued:
        job.tell("A node was lost; Slurm starts the job again, from the newest checkpoint.", "warn")
        return EXIT_STOPPED
    except StepFailed as failed:
        line = _LINE.match(str(failed)) if failed.param else None
        message = _told(str(failed), job.folder, failed.param)
        number = int(line["number"]) if line else 0
        job.end("failed", code=failed.code, param=failed.param, message=message, line=number)
        job.tell(message, "error")
        return EXIT_FAILED


def _told(text: str, folder: Path, param: str) -> str:
    """Paths and flags of the recipes mean nothing to whoever uploaded a file."""
    if param:
        text = _FLAG_ADVICE.sub("", text)
    return text.replace(f"{folder}/{param}.jsonl: " if param else "", "").replace(f"{folder}/", "")


def run(args: argparse.Namespace) -> int:
    job = Job(args.folder)
    signal.signal(signal.SIGTERM, job.stop)
    note(f"{args.folder}: attempt {job.wanted.get('attempt', 1)}")
    return guarded(job, lambda: carry_out(job, args.until))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Carry out the fine-tuning job of a folder.")
    parser.add_argument("folder", type=Path, help="holds job.json and training_file.jsonl")
    parser.add_argument("--until", metavar="STEP", help='end before this step, for example "Train"')
    return exit_code(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
