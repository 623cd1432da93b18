"""FT-08, AIS-13: a whole job in one folder, also when it is stopped, killed or given a bad line."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import tuning_job
from neocloud.testing.waiting import wait_until
from recipe_errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED
from tests.fast.recipes.conftest import CHATS, RECIPES, write_chats

ARGUMENTS = {
    "num_train_epochs": 6.0,
    "per_device_train_batch_size": 2,
    "learning_rate": 0.01,
    "lora_r": 4,
    "save_steps": 4,
    "logging_steps": 1,
    "seed": 1,
}


def folder_of(path: Path, model: Path, **wanted: Any) -> Path:
    write_chats(path / "training_file.jsonl", CHATS)
    content = {
        "attempt": 1, "name": "tiny:ft-x", "model": str(model), "model_name": "tiny", "model_digest": "",
        "seed": 1, "context": 128, "packing": False, "merge": False, "samples": 1, "cpus": 1,
        "processes": 1, "arguments": ARGUMENTS, **wanted,
    }  # fmt: skip
    (path / "job.json").write_text(json.dumps(content))
    return path


def outcome(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "outcome.json").read_text())


def start(folder: Path) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, str(RECIPES / "tuning_job.py"), str(folder)],
        stdout=quiet, stderr=quiet, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def run_here(folder: Path, until: str = "") -> None:
    """Steps in this process: a process of its own spends seconds on its libraries."""
    for step in tuning_job.steps(tuning_job.Job(folder)):
        if step.name == until:
            return
        if step.makes.exists():
            continue
        recipe = importlib.import_module(Path(step.command[0]).stem)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert recipe.main(step.command[1:]) == EXIT_OK
        if step.output:
            step.output.write_text(said.getvalue())


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[bytes]) -> None:
    def has_checkpoint() -> bool:
        assert process.poll() is None, (folder / "log.txt").read_text()
        return any(folder.glob("finetune/checkpoint-[0-9]*"))

    wait_until(has_checkpoint, lambda: (folder / "log.txt").read_text(), seconds=300)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A job that was stopped in the middle and then went to its end."""
    many = {**ARGUMENTS, "max_steps": 30, "save_steps": 2}
    folder = folder_of(tmp_path_factory.mktemp("job"), tiny_model, arguments=many)
    run_here(folder, until="Train")
    process = start(folder)
    wait_for_checkpoint(folder, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == EXIT_STOPPED and outcome(folder)["state"] == "stopped"
    assert not (folder / "finetune" / "adapter").exists()
    run_here(folder)
    assert tuning_job.main([str(folder)]) == EXIT_OK
    return folder


def test_a_job_that_is_stopped_trains_no_step_twice(resumed: Path) -> None:
    end = outcome(resumed)
    assert end["state"] == "succeeded" and end["fine_tuned_perplexity"] < end["base_perplexity"]
    with (resumed / "metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train_loss"]]
    assert steps == list(range(1, 31))
    assert (resumed / "result" / "adapter_config.json").is_file()
    assert "tiny" in (resumed / "result" / "README.md").read_text()
    said = [json.loads(line)["message"] for line in (resumed / "events.jsonl").read_text().splitlines()]
    assert [text[:8] for text in said] == ["Train.", "Stopped;", "Training"]


def test_its_lineage_says_what_it_was_made_of(resumed: Path) -> None:
    found = json.loads((resumed / "lineage.json").read_text())
    data = found["data"]
    source = (resumed / "training_file.jsonl").read_bytes()
    assert data["source"] == {"sha256": sha256(source).hexdigest(), "bytes": len(source), "rows": 12}
    assert data["split"] == {"held_out": "tenth", "seed": 1}
    assert data["training"]["rows"] + data["held_out"]["rows"] + data["left_out"]["held_out_copies"] == 12
    assert {"not_learnt", "truncated", "dropped", "without_labels"} <= data["left_out"].keys()
    assert found["seed"] == 1 and found["settings"]["lora_r"] == 4 and found["machine"]["processes"] == 1
    checkpoints = {each["step"]: each["is_kept"] for each in found["checkpoints"]}
    assert checkpoints.keys() >= set(range(2, 32, 2)) and not checkpoints[2] and checkpoints[30]
    card = (resumed / "result" / "README.md").read_text()
    assert data["source"]["sha256"] in card and found["recipe"]["sha256"] in card
    assert "| license | not_recorded |" in card and "| lora_r | 4 |" in card


def test_the_same_data_settings_and_recipe_give_the_same_weights(
    resumed: Path, tmp_path: Path, tiny_model: Path
) -> None:
    """Also although the first job was stopped once: the run is the same on the same machine."""
    settings = json.loads((resumed / "job.json").read_text())
    again = folder_of(tmp_path, tiny_model, arguments=settings["arguments"], model_license="Apache-2.0")
    run_here(again, until="Evaluate")
    weights = [each / "finetune/adapter/adapter_model.safetensors" for each in (resumed, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_merged_model_is_a_whole_one(resumed: Path, tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(resumed, folder)
    wanted = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**wanted, "merge": True}))
    assert tuning_job.main([str(folder)]) == EXIT_OK
    base = safetensors.torch.load_file(tiny_model / "model.safetensors")
    merged = safetensors.torch.load_file(folder / "result" / "model.safetensors")
    assert merged.keys() == base.keys()
    assert all(merged[name].dtype == base[name].dtype for name in base)
    assert any((merged[name] != base[name]).any() for name in base)
    assert (folder / "result" / "tokenizer.json").is_file()


@pytest.mark.parametrize("bad", ['{"messages": [', '{"messages": [{"role": "user", "content": "only"}]}'])
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, tiny_model: Path, bad: str) -> None:
    folder = folder_of(tmp_path, tiny_model)
    with (folder / "training_file.jsonl").open("a") as file:
        file.write(bad + "\n")
    assert tuning_job.main([str(folder)]) == EXIT_FAILED
    end = outcome(folder)
    assert (end["code"], end["param"], end["line"]) == ("invalid_training_file", "training_file", 13)
    assert end["message"].startswith("line 13: ") and "--" not in end["message"]
