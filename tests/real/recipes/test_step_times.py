"""`neo slurm job diagnose` finds the slow process of a fine-tuning run by the files that it writes."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dataset_tokenize
from neocloud.services.slurm.api.diagnosis import diagnose
from neocloud.services.slurm.api.rank_reports import rank_reports
from step_times import StepTimes
from tests import ROOT
from tests.fast.recipes.conftest import ALONE, RECIPES
from training_step import StepResult

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
PROBE = ROOT / "src/neocloud/services/slurm/api/probes/ranks.py"
STEPS = 12
SLOW = f"""
import os, sys, time
sys.path.insert(0, {str(RECIPES)!r})
import finetune
from training_step import TrainingStep
loss = TrainingStep._loss
def slow(self, *given):
    time.sleep(0.4 if os.environ["RANK"] == "1" else 0.0)
    return loss(self, *given)
TrainingStep._loss = slow
sys.exit(finetune.main())
"""


def test_the_slow_process_of_a_run_is_found_by_its_step_times(
    chats: Path, tiny_model: Path, tmp_path: Path
) -> None:
    assert dataset_tokenize.main([str(chats), "--model", str(tiny_model), "--context", "128", *ALONE]) == 0
    program, folder = tmp_path / "slow.py", tmp_path / "times"
    program.write_text(SLOW, "utf-8")
    command = [
        *TORCHRUN,
        str(program),
        "--model",
        str(tiny_model),
        "--data",
        str(chats.with_suffix(".arrow")),
    ]
    command += ["--output-dir", str(tmp_path / "out"), "--set", f"max_steps={STEPS}"]
    command += ["--set", "per_device_train_batch_size=1", "--set", "gradient_accumulation_steps=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NEOCLOUD_STEP_TIMES": str(folder)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    read = runpy.run_path(str(PROBE))["step_times"]
    ranks = []
    for rank in (0, 1):
        times, why = read(str(folder / f"rank-{rank}.jsonl"))
        assert [each[0] for each in times] == list(range(STEPS)) and why == ""
        ranks.append({"rank": rank, "times": times, "stacks": [], "why": []})
    line = json.dumps({"node": "worker-0", "ranks": ranks}).encode()
    found = diagnose(rank_reports(line, ["worker-0"]), {})
    assert [(each.kind, list(each.ranks)) for each in found.findings] == [("slow", [1])], found
    assert all(each.own_seconds <= each.step_seconds for each in found.ranks)


def test_without_a_job_and_where_nothing_can_be_written_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    StepTimes.of(0).add(0, StepResult(1.0, 1, 1.0))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEOCLOUD_STEP_TIMES", str(tmp_path / "file"))
    StepTimes.of(0).add(0, StepResult(1.0, 1, 1.0))
    assert "step times are not written" in capsys.readouterr().err
    full = StepTimes(open("/dev/full", "w", buffering=1))  # noqa: SIM115
    full.add(0, StepResult(1.0, 1, 1.0))
    full.add(1, StepResult(1.0, 1, 1.0))
    assert capsys.readouterr().err.count("step times end here") == 1


def test_on_a_gpu_no_waiting_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not measured there, and ranks without it are not compared."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    times = StepTimes.of(3)
    times.add(5, StepResult(1.0, 1, 1.0, 0.25, None))
    times.close()
    assert (tmp_path / "step-times-7" / "rank-3.jsonl").read_text() == '{"step": 5, "seconds": 0.25}\n'
