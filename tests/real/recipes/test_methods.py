"""Whole jobs on a tiny model: all weights, preferences and rewards, resumed as if they had never stopped."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import preference
import reinforcement
import tuning_job
from recipe_errors import EXIT_OK
from tests.fast.recipes.conftest import CHATS
from tests.real.recipes.test_tuning_job import ARGUMENTS, folder_of, outcome, run_here

STEPS = {**ARGUMENTS, "learning_rate": 0.02, "max_steps": 12, "save_steps": 4}
GRADER = {
    "type": "string_check",
    "operation": "like",
    "input": "{{sample.output_text}}",
    "reference": "{{item.wanted}}",
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "supervised": [{"messages": chat} for chat in CHATS],
    "dpo": [
        {"prompt": f"I lost my card {number}.", "chosen": "Freeze it in the app.", "rejected": "Buy a loan."}
        for number in range(12)
    ],
    "reinforcement": [{"prompt": f"I lost my card {number}.", "wanted": "e"} for number in range(12)],
}
WANTED: dict[str, dict[str, Any]] = {
    "supervised": {"lora": False, "arguments": {**STEPS, "lora": False, "learning_rate": 0.002}},
    "dpo": {"arguments": {**STEPS, "beta": 0.1, "max_length": 64}},
    "reinforcement": {
        "grader": GRADER,
        "arguments": {
            **STEPS, "num_generations": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 1,
            "max_completion_length": 8,
        },
    },
}  # fmt: skip
RESULT = {"supervised": "model.safetensors"}


def job_of(path: Path, model: Path, method: str) -> Path:
    folder = folder_of(path, model, method=method, **WANTED[method])
    lines = "".join(json.dumps(row) + "\n" for row in ROWS[method])
    (folder / "training_file.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="module", params=["supervised", "dpo", "reinforcement"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = job_of(tmp_path_factory.mktemp(request.param), tiny_model, request.param)
    run_here(folder)
    assert tuning_job.main([str(folder)]) == EXIT_OK, (folder / "log.txt").read_text()
    return folder


def method_of(folder: Path) -> str:
    return json.loads((folder / "job.json").read_text())["method"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    name = RESULT.get(method_of(folder), "adapter_model.safetensors")
    return safetensors.torch.load_file(folder / "result" / name)


def column(folder: Path, name: str) -> list[float]:
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def test_a_job_ends_with_what_its_method_measures(done: Path) -> None:
    end, method = outcome(done), method_of(done)
    assert end["state"] == "succeeded" and len(column(done, "train_loss")) == 12
    if method == "reinforcement":
        assert (
            0 <= end["base_reward"] <= 1
            and 0 <= end["fine_tuned_reward"] <= 1
            and "base_perplexity" not in end
        )
        assert len(column(done, "reward")) == 12
    else:
        assert end["fine_tuned_perplexity"] < end["base_perplexity"]
    if method == "dpo":
        margins = column(done, "reward_margin")
        assert margins[-1] > 0.5 > margins[0] and column(done, "valid_preference_accuracy")[-1] == 1.0
    lineage = json.loads((done / "lineage.json").read_text())
    assert lineage["settings"]["method"] == method and lineage["adapter_sha256"]
    assert len([each for each in (done / "finetune").glob("checkpoint-*")]) == 2
    assert not (done / "finetune" / ".trainer").exists()


def test_all_weights_are_those_of_a_whole_model(done: Path, tiny_model: Path) -> None:
    if method_of(done) != "supervised":
        assert (done / "result" / "adapter_config.json").is_file()
        return
    base, tuned = (
        safetensors.torch.load_file(folder / "model.safetensors") for folder in (tiny_model, done / "result")
    )
    assert tuned.keys() == base.keys()
    assert all((tuned[name] != base[name]).any() for name in base if base[name].dim() == 2)
    assert (done / "result" / "config.json").is_file() and (done / "result" / "tokenizer.json").is_file()
    assert json.loads((done / "result" / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_a_run_that_continues_is_the_run_that_never_stopped(done: Path, tmp_path: Path) -> None:
    """From a checkpoint in the middle, with a damaged one and one that was half written behind it."""
    again = tmp_path / "job"
    shutil.copytree(done, again)
    finetune = again / "finetune"
    (finetune / "checkpoint-000012" / "optimizer.pt").write_bytes(b"damaged")
    (finetune / ".trainer" / "checkpoint-10").mkdir(parents=True)
    for name in ("adapter", "model"):
        shutil.rmtree(finetune / name, ignore_errors=True)
    for name in ("result", "report.json", "outcome.json", "metrics.csv"):
        path = again / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_here(again)
    assert tuning_job.main([str(again)]) == EXIT_OK
    for name in ("train_loss", *(["reward", "answer_tokens"] if method_of(done) == "reinforcement" else [])):
        assert column(again, name) == pytest.approx(column(done, name), abs=1e-6)
    if method_of(done) == "reinforcement":
        return  # gradients that are rounding errors become steps of Adam
    first, second = weights(done), weights(again)
    assert first.keys() == second.keys() and first
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("script", "method"), [(preference, "dpo"), (reinforcement, "reinforcement")])
def test_a_loss_that_is_no_number_ends_the_run(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], script: Any, method: str
) -> None:
    folder = job_of(tmp_path, tiny_model, method)
    run_here(folder, until="Train")
    config = {**WANTED[method]["arguments"], "learning_rate": 1e30, "warmup_ratio": 0.0, "max_grad_norm": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    flags = [
        "--config",
        str(folder / "config.json"),
        "--model",
        str(tiny_model),
        "--output-dir",
        str(folder / "out"),
    ]
    flags += ["--data", str(folder / "chats_train.jsonl")]
    flags += ["--grader", str(folder / "grader.json")] if method == "reinforcement" else []
    assert script.main(flags) == 1
    said = capsys.readouterr().err
    assert "the loss is not a finite number; lower learning_rate" in said


def test_a_run_ends_early_with_its_best_weights(tmp_path: Path, tiny_model: Path) -> None:
    """Also when it is resumed after the best checkpoint; the result is what that checkpoint holds."""
    folder = job_of(tmp_path, tiny_model, "supervised")
    arguments = {
        **WANTED["supervised"]["arguments"], "learning_rate": 0.05, "max_steps": 40, "save_steps": 2,
        "save_total_limit": 1, "early_stopping_patience": 2, "max_grad_norm": 0.0,
    }  # fmt: skip
    wanted = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**wanted, "arguments": arguments}))
    run_here(folder, until="Evaluate")
    lines = [json.loads(line) for line in (folder / "finetune" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert max(losses) == best + 4 < 40, f"it ended two checkpoints after the best: {losses}"
    kept = safetensors.torch.load_file(folder / "finetune" / f"checkpoint-{best:06d}" / "model.safetensors")
    result = safetensors.torch.load_file(folder / "finetune" / "model" / "model.safetensors")
    assert all(torch.equal(kept[name], result[name]) for name in kept)
