"""FT-10, FT-11: the batch scripts; signals reach the processes and the outcome is reported."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fast.recipes.conftest import RECIPES

# Stands where Slurm's srun would: says it runs, and ends when the batch script forwards SIGTERM.
SRUN = """#!/bin/bash
trap 'echo "SIGTERM reached $*"; kill -KILL "$waiting"; exit 1' TERM
sleep infinity &
waiting=$!
echo started
wait
"""
# One node of the job is down once LOST names it.
SINFO = """#!/bin/bash
echo "${LOST:-}" | grep .
"""
SCONTROL = """#!/bin/bash
case $1 in show) printf 'worker-0\\nworker-1\\n';; *) echo "scontrol $*";; esac
"""

# As when the step is not there yet, so that srun has to be signalled.
SCANCEL = """#!/bin/bash
echo "scancel $*"
exit 1
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment like that of a job, with commands that stand in for Slurm's."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sinfo", SINFO), ("scancel", SCANCEL)):
        (commands / name).write_text(text, "utf-8")
        (commands / name).chmod(0o755)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "chats_train.arrow").touch()
    return os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CODE": str(RECIPES),
        "OUT": str(tmp_path / "out"),
        "SLURM_JOB_ID": "20007",
        "SLURM_JOB_NODELIST": "worker-[0-1]",
        "SLURM_NNODES": "2",
    }


def finish(environment: dict[str, str], signal_number: int) -> tuple[int, str]:
    """Start the fine-tuning job, signal the batch script once srun runs, return how it ended."""
    process = subprocess.Popen(
        ["bash", str(RECIPES / "finetune_distributed.sbatch")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal_number)
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, output


def test_sigterm_is_forwarded_and_the_job_exits_with_75(slurm: dict[str, str]) -> None:
    code, output = finish(slurm, signal.SIGTERM)
    assert code == 75
    assert "scancel --signal=TERM 20007.0" in output
    assert "SIGTERM reached" in output and "stopped with a checkpoint" in output
    assert "finetune.py --config" in output


def test_a_signal_at_the_moment_when_srun_starts_is_forwarded(slurm: dict[str, str], tmp_path: Path) -> None:
    told = SRUN.replace("sleep infinity", "kill -TERM $PPID\nsleep infinity")
    (tmp_path / "bin" / "srun").write_text(told, "utf-8")
    code, output, _ = outcome(slurm)
    assert code == 75 and "SIGTERM reached" in output


def test_near_the_time_limit_the_job_goes_back_into_the_queue(slurm: dict[str, str]) -> None:
    code, output = finish(slurm, signal.SIGUSR1)
    assert code == 0
    assert "SIGTERM reached" in output and "scontrol requeue 20007" in output


def outcome(environment: dict[str, str]) -> tuple[int, str, str]:
    """Run the fine-tuning job to its end: exit code, stdout, stderr."""
    script = ["bash", str(RECIPES / "finetune_distributed.sbatch")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_mistakes_are_told_before_anything_starts(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"epochs": 3}', "utf-8")
    code, output, error = outcome(slurm | {"CONFIG": str(tmp_path / "wrong.json")})
    assert (code, output) == (1, "") and "unknown key 'epochs'" in error
    (tmp_path / "out" / "chats_train.arrow").unlink()
    code, output, error = outcome(slurm)
    assert (code, output) == (1, "") and "run prepare.sbatch first" in error


def test_a_failure_for_want_of_a_node_goes_back_into_the_queue(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "srun").write_text("#!/bin/bash\nexit 1\n", "utf-8")
    code, output, error = outcome(slurm | {"LOST": "worker-1"})
    assert (code, output) == (0, "scontrol requeue 20007\n")
    assert "a node was lost" in error


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.s*h*")), ids=lambda path: path.name)
def test_scripts_are_valid_bash(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
