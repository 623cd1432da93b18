"""Measure how fast the recipes fine-tune on a GPU, and the share of its peak FLOP/s."""

import json
import subprocess
import sys
from pathlib import Path

from served.models import LORA, Weights
from served.places import KEY, SEED_PATH, SPACE, Machine, plain_pod

from neocloud.engines.base import Engine, Reference
from neocloud.services.inference.render import MODEL_PATH, foundation

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
CONTEXT, ROWS, STEPS = 1024, 8, 20
SECONDS = 1800.0
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Dense 16-bit FLOP/s from the data sheets, by a part of the GPU's name."""
FLOPS_PER_PARAMETER = 4
"""A token forwards and backwards through weights that are frozen: 2 and 2, where training all takes 2 and 4.
What is computed twice to save memory does not count."""


async def training_line(engine: Engine, machine: Machine, weights: Weights, gpu: str, work: Path) -> str:
    """LoRA over packed rows, by recipes/finetune.py in a pod with one GPU."""
    data = _prepare(weights, work)
    pod = plain_pod("training", machine, weights, work, ["sleep", "infinity"])
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": ROWS,
        "save_steps": 0,
        "lora_r": LORA["r"],
        "gradient_checkpointing": "true",
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = ["python3", f"{SEED_PATH}/recipes/finetune.py", "--model", MODEL_PATH]
    command += ["--data", f"{SEED_PATH}/{data.name}", "--output-dir", "/tmp/run", *flags]
    await engine.apply([*foundation(SPACE, "bench", KEY.encode()), pod])
    reference = pod.reference
    try:
        await _run(engine, reference, command)
        said = await _run(engine, reference, ["cat", "/tmp/run/adapter/training_summary.json"])
    finally:
        await engine.remove([reference])
    speed = json.loads(said)["tokens_per_second"]
    peak = next((flops for name, flops in PEAKS.items() if name in gpu), None)
    line = f"fine-tune, LoRA rank {LORA['r']}, rows of {CONTEXT}: {speed:,.0f} tokens/s"
    if peak is None:
        return f"{line}; MFU: not_run, no peak is known for {gpu}"
    share = FLOPS_PER_PARAMETER * weights.parameters * speed / peak
    return f"{line}, MFU {share:.1%} ({FLOPS_PER_PARAMETER}N FLOPs a token, peak {peak / 1e12:.0f} TFLOP/s)"


def _prepare(weights: Weights, work: Path) -> Path:
    """Copy the recipes and packed rows to the folder that the pod mounts."""
    work.mkdir()
    subprocess.run(["cp", "-R", RECIPES, work / "recipes"], check=True)
    chats, rows = work / "chats.jsonl", work / "rows.arrow"
    _recipe("make_dataset.py", "--output", work / "bank.csv")
    _recipe("dataset_convert.py", work / "bank.csv", "--output", chats)
    options = ("--context", str(CONTEXT), "--pack", "--output", rows)
    _recipe("dataset_tokenize.py", chats, "--model", weights.base, *options)
    return rows


def _recipe(name: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, RECIPES / name, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")


async def _run(engine: Engine, pod: Reference, command: list[str]) -> str:
    done = await engine.exec(pod, command, timeout_seconds=SECONDS)
    if done.exit_code:
        raise SystemExit(f"{command[1]}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()
