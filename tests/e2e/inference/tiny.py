"""A tiny whole model made by the recipes, kept as long as they stay as they are; and adapters on it."""

import hashlib
import json
import os
import struct
import sys
from pathlib import Path

from tests.e2e.cloud import run

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"
SCRIPTS = ("make_dataset.py", "dataset_convert.py", "dataset_split.py", "make_base_model.py")
TRAINING_SECONDS = 20


def base_model() -> Path:
    """The folder of the model; made once for all test runs on this machine. Half a minute the first time."""
    scripts = b"".join((RECIPES / name).read_bytes() for name in SCRIPTS)
    version = hashlib.sha256(scripts + str(TRAINING_SECONDS).encode()).hexdigest()[:12]
    folder = ROOT / ".cache" / "models" / f"tiny-{version}"
    if not folder.is_dir():
        partial = folder.with_name(f".{folder.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        _recipe("make_dataset.py", "--output", partial / "bank.csv")
        _recipe("dataset_convert.py", partial / "bank.csv")
        _recipe("dataset_split.py", partial / "bank.jsonl", "--ratio", "0.9", "--rand-sort")
        seconds = ("--max-seconds", str(TRAINING_SECONDS))
        _recipe("make_base_model.py", partial / "bank_train.jsonl", "--output", partial / "model", *seconds)
        try:
            (partial / "model").rename(folder)
        except OSError:  # another test run was faster: theirs is as good
            if not folder.is_dir():
                raise
    return folder


def write_adapter(folder: Path, model: Path, *, rank: int = 8) -> Path:
    """A LoRA adapter on the query projections that changes nothing yet: one side of it is zero."""
    config = json.loads((model / "config.json").read_text())
    hidden, queries = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        shapes[f"{name}.lora_A.weight"] = (rank, hidden)
        shapes[f"{name}.lora_B.weight"] = (queries, rank)
    folder.mkdir(parents=True)
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**adapter, "task_type": "CAUSAL_LM"}))
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        size = rows * columns * 2
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return folder


def _recipe(name: str, *arguments: str | Path) -> None:
    run([sys.executable, RECIPES / name, *arguments])
