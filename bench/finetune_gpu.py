#!/usr/bin/env python3
"""Measure the fine-tuning recipe on one GPU, with weights in the shapes of known models.

    python bench/finetune_gpu.py --shapes 0.6b 8b [--context 2048]

Prints the tokens per second of `recipes/finetune.py` (LoRA, bf16), without its start, and the share of two
peaks that this is: of the matrix product that the same GPU does in the same run, and of the data sheet's 989
TFLOP/s (bf16, dense, H100 and H200 SXM). The weights are random: the speed does not depend on their values.

Operations for a token: 4 for each frozen weight of a matrix (forward, and backward to the activations alone),
and 6 x context x heads x head size for each layer's causal attention. What gradient checkpointing computes
again is not counted.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from finetune import RECIPES, call, python
from neocloud.fleet.active import gpu

SHEET_TFLOPS = 989.0


@dataclass(frozen=True)
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    rows: int
    """Rows of the context's length, in a step."""
    is_checkpointed: bool
    vocabulary: int = 151_936
    head_size: int = 128
    is_tied: bool = False

    @property
    def matrix_weights(self) -> int:
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.hidden * self.vocabulary

    def operations(self, context: int) -> float:
        return 4 * self.matrix_weights + 6 * context * self.heads * self.head_size * self.layers

    def config(self, context: int) -> Any:
        return Qwen3Config(
            hidden_size=self.hidden, intermediate_size=self.inner, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, head_dim=self.head_size,
            vocab_size=self.vocabulary, max_position_embeddings=context, tie_word_embeddings=self.is_tied,
        )  # fmt: skip


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 4, is_checkpointed=False, vocabulary=4096, head_size=32),
    "0.6b": Shape(1024, 3072, 28, 16, 8, 8, is_checkpointed=False, is_tied=True),
    "8b": Shape(4096, 12288, 36, 32, 8, 8, is_checkpointed=True),
}
"""The last two are Qwen3's."""


def prepare(folder: Path, context: int) -> tuple[Path, Path]:
    """Return a folder with a tokenizer, and packed rows."""
    data, chats, model, packed = (folder / n for n in ("bank.csv", "chats.jsonl", "tokenizer", "rows.arrow"))
    python("make_dataset.py", "--output", data)
    python("dataset_convert.py", data, "--output", chats)
    python("make_base_model.py", chats, "--output", model, "--max-steps", "1")
    tokenize = ("dataset_tokenize.py", chats, "--model", model, "--context", str(context))
    python(*tokenize, "--output", packed, "--pack")
    return model, packed


def make_model(shape: Shape, context: int, tokenizer: Path, target: Path) -> None:
    target.mkdir()
    for each in tokenizer.iterdir():
        if each.suffix in {".json", ".jinja"} and each.name not in {"config.json", "generation_config.json"}:
            (target / each.name).write_bytes(each.read_bytes())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3ForCausalLM(shape.config(context))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(target)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()


def speed(
    shape: Shape, model: Path, data: Path, output: Path, steps: int, more: Mapping[str, str] = {},
    start: Sequence[str] = (sys.executable,),
) -> float:  # fmt: skip
    """Return tokens per second from the fifth step on. `more` are further settings, and `start` is the
    command that runs the recipe."""
    settings = {
        "max_steps": steps,
        "per_device_train_batch_size": shape.rows,
        "gradient_checkpointing": str(shape.is_checkpointed).lower(),
        "logging_steps": 5,
        "save_steps": 0,
        **more,
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    places = ["--model", str(model), "--data", str(data), "--output-dir", str(output)]
    call([*start, str(RECIPES / "finetune.py"), *places, *flags])
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    return (last["tokens"] - first["tokens"]) / (last["time"] - first["time"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6b", "8b"])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    print(torch.cuda.get_device_name() if has_gpu else "no GPU: the figures say nothing", torch.__version__)
    gemm = gpu.measure("gpu_gemm")[0].value if has_gpu else None
    print(f"gemm {gemm:.0f} TFLOP/s" if gemm else "gemm not_run", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-finetune-") as name:
        folder = Path(name)
        tokenizer, data = prepare(folder, given.context)
        for each in given.shapes:
            shape = SHAPES[each]
            make_model(shape, given.context, tokenizer, folder / each)
            tokens = speed(shape, folder / each, data, folder / f"{each}-run", given.steps)
            rate = tokens * shape.operations(given.context) / 1e12
            to_gemm = f"{rate / gemm:.2f} of the gemm, {rate / SHEET_TFLOPS:.2f} of the sheet" if gemm else ""
            print(f"{each}: {tokens:,.0f} tokens/s, {rate:,.1f} TFLOP/s {to_gemm}", flush=True)


if __name__ == "__main__":
    main()
