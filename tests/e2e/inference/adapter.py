"""Writes LoRA adapters for the tests' model."""

import json
import struct
from pathlib import Path


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
