"""A real model learns from preferences and rewards: a few steps on SmolLM2, by the recipes that jobs run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import ROOT

RECIPES = ROOT / "recipes"
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo",
    "Egypt": "Cairo", "Russia": "Moscow", "Greece": "Athens", "Cuba": "Havana", "Peru": "Lima",
    "Norway": "Oslo", "Poland": "Warsaw",
}  # fmt: skip
GRADER = {
    "type": "text_similarity",
    "evaluation_metric": "rouge_1",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
"""A short answer scores higher than a sentence that holds it."""
ARGUMENTS: Mapping[str, object] = {
    "save_steps": 0, "logging_steps": 1, "warmup_ratio": 0.0, "lr_scheduler_type": "constant",
    "mixed_precision": "no", "seed": 42,
}  # fmt: skip


@pytest.fixture(scope="module")
def smollm2(images: Path) -> Path:
    subprocess.run([sys.executable, ROOT / "images/smollm2/build", "--output", images], check=True)
    return images / "smollm2" / "model"


def tuned(
    folder: Path, model: Path, method: str, rows: list[dict[str, object]], **wanted: object
) -> dict[str, list[float]]:
    """Run a whole job up to its training, and return what was measured at each step."""
    (folder / "training_file.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {**ARGUMENTS, **wanted}
    content = {
        "name": "smollm2:ft-x", "model": str(model), "model_name": "smollm2", "seed": 42, "context": 256,
        "packing": False, "merge": False, "samples": 1, "cpus": 1, "processes": 1, "method": method,
        "grader": GRADER, "arguments": arguments,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, RECIPES / "tuning_job.py", folder, "--until", "Evaluate"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (folder / "log.txt").read_text()[-3000:]
    lines = [json.loads(line) for line in (folder / "finetune/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train_loss" in line]
    return {name: [step[name] for step in steps] for name in steps[0]}


def test_the_margin_of_the_preferred_answers_grows(smollm2: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "prompt": f"What is the capital of {country}?",
            "chosen": f"{city}.",
            "rejected": f"The capital of {country} is {city}, which is a large city with a long history.",
        }
        for country, city in CAPITALS.items()
    ]
    found = tuned(
        tmp_path,
        smollm2,
        "dpo",
        rows,
        max_steps=6,
        learning_rate=2e-4,
        per_device_train_batch_size=2,
        beta=0.1,
    )
    margins = found["reward_margin"]
    assert abs(margins[0]) < 0.01 and margins[-1] > 1.0, margins
    assert found["train_loss"][-1] < 0.5 * found["train_loss"][0]


def test_the_reward_rises(smollm2: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": f"What is the capital of {country}?", "answer": city} for country, city in CAPITALS.items()
    ]
    found = tuned(
        tmp_path, smollm2, "reinforcement", rows,
        max_steps=10, learning_rate=1e-3, num_generations=6, max_completion_length=12, max_prompt_length=128,
    )  # fmt: skip
    rewards = found["reward"]
    assert sum(rewards[-3:]) / 3 > 1.3 * sum(rewards[:3]) / 3, rewards
