#!/usr/bin/env python3
"""Make a copy of a model with weights of 8 or 4 bits in its layers, and compare the quality of both.

OUT/model is the copy, in the format of compressed-tensors, which vLLM loads; OUT/quality.json says how its
quality compares. With int8 each row of a matrix has a scale, and the model server rounds its inputs to 8 bits
too, token by token; what is large in the inputs is moved into the weights before (smoothing.py), which takes
the memory of the original. With int4 each 32 numbers of a row have a scale and an offset. Embeddings and the
output layer stay as they are. One file of the model is in memory at a time.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, exit_code, needed_packages, note
from smoothing import Factors, smoothing
from weights_quality import compare

with needed_packages():
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

MATRIX = re.compile(r"(?:^|\.)layers\.\d+\..*\.weight$")
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
GROUP = 32
"""Numbers of a row with one scale and one offset in 4 bits; sizes of matrices must be its multiples."""
INT8_LARGEST, INT4_LARGEST = 127, 15
CLIPS = (1.0, 0.95, 0.9, 0.85)
"""Shares of a group's range that are tried; the one with the least error is kept."""
SMALLEST_SCALE = 1e-10
INDEX = "model.safetensors.index.json"
LARGEST_OTHER_BYTES = 256 << 20

Tensors = dict[str, Any]


def config_of(weights: str) -> dict[str, Any]:
    """Return the `quantization_config` of config.json."""
    bits = {"int8": 8, "int4": 4}[weights]
    scheme: dict[str, Any] = {"num_bits": bits, "type": "int", "dynamic": False}
    if weights == "int8":
        scheme |= {"symmetric": True, "strategy": "channel"}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    else:
        scheme |= {"symmetric": False, "strategy": "group", "group_size": GROUP}
        inputs = None
    group = {
        "targets": ["Linear"],
        "weights": scheme,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if weights == "int8" else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is a matrix of a repeated layer."""
    return len(shape) == 2 and bool(MATRIX.search(name)) and name.split(".")[-2] not in ROUTERS


def int8_tensors(name: str, weight: Any) -> Tensors:
    """Return the tensors that stand for a matrix (out, in): whole numbers, and the scale of each row."""
    scale = (weight.float().abs().amax(1, keepdim=True) / INT8_LARGEST).clamp(min=SMALLEST_SCALE)
    whole = (weight.float() / scale).round().clamp(-INT8_LARGEST, INT8_LARGEST).to(torch.int8)
    return {name: whole, f"{name}_scale": scale}


def int4_tensors(name: str, weight: Any) -> Tensors:
    """Return the tensors that stand for a matrix (out, in), eight numbers in each 32 bits."""
    rows, columns = weight.shape
    if rows % GROUP or columns % GROUP:
        raise RecipeError(f"{name} is {rows} x {columns}: with int4 both must be multiples of {GROUP}")
    dtype = torch.bfloat16 if weight.dtype == torch.float32 else weight.dtype
    numbers, scale, offset = _best_groups(weight.float().view(rows, -1, GROUP), dtype)
    stem = name.removesuffix("weight")
    return {
        f"{stem}weight_packed": packed(numbers.view(rows, columns)),
        f"{stem}weight_scale": scale.view(rows, -1).to(dtype),
        f"{stem}weight_zero_point": packed(offset.view(rows, -1).t()).t().contiguous(),
        f"{stem}weight_shape": torch.tensor([rows, columns]),
    }


def _best_groups(groups: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """Return numbers from 0 to 15, the scale and the offset of each group (rows, groups, GROUP)."""
    low = groups.amin(2, keepdim=True).clamp(max=0)
    high = groups.amax(2, keepdim=True).clamp(min=0)
    best: tuple[Any, Any, Any] | None = None
    least: Any = None
    for clip in CLIPS:
        scale = ((high - low) * clip / INT4_LARGEST).to(dtype).float().clamp(min=SMALLEST_SCALE)
        offset = (-low * clip / scale).round().clamp(0, INT4_LARGEST)
        numbers = ((groups / scale).round() + offset).clamp(0, INT4_LARGEST)
        error = (((numbers - offset) * scale - groups) ** 2).sum(2, keepdim=True)
        if best is None:
            best, least = (numbers, scale, offset), error
            continue
        better = error < least
        least = torch.where(better, error, least)
        found = (numbers, scale, offset)
        best = tuple(torch.where(better, new, old) for new, old in zip(found, best, strict=True))  # pyright: ignore[reportAssignmentType]
    assert best is not None, "CLIPS is not empty."
    return best


def packed(numbers: Any) -> Any:
    """Return rows of numbers from 0 to 15 with eight in each 32 bits, the first in the lowest."""
    rows, columns = numbers.shape
    parts = numbers.to(torch.int64).view(rows, columns // 8, 8)
    shifts = torch.arange(0, 32, 4, dtype=torch.int64)
    return (parts << shifts).sum(2).to(torch.int32)


MAKERS = {"int8": int8_tensors, "int4": int4_tensors}


def quantize(model: Path, out: Path, weights: str, *, is_smoothed: bool = True) -> tuple[int, int]:
    """Write the copy, and return the bytes of the original's weights and of its own."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    check_model(config)
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise RecipeError(f"{model} has no *.safetensors")
    factors = smoothing(model, config) if weights == "int8" and is_smoothed else {}
    if not factors.keys() <= {name for file in files for name in _names(file)}:
        factors = {}  # its files name the layers in another way
    out.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    count = 0
    for file in files:
        tensors = dict(_converted(file, weights, factors))
        count += sum(f"{name}_scale" in tensors or name.endswith("_packed") for name in tensors)
        save_file(tensors, out / file.name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file.name)
    if not count:
        raise RecipeError(f"{model} has no layers whose weights could have fewer bits")
    if len(files) > 1:
        (out / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    _copy_others(model, out)
    config["quantization_config"] = config_of(weights)
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return _size(files), _size(out / file.name for file in files)


def check_model(config: Mapping[str, Any]) -> None:
    """Raise RecipeError for a model that is not converted: one that is already, or has other parts."""
    if config.get("quantization_config"):
        raise RecipeError("the model's weights have fewer bits already; serve it as it is")
    parts = [name for name in ("vision_config", "audio_config") if config.get(name)]
    if parts:
        raise RecipeError(f"the model has a {parts[0]}, and only models of text are converted")


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:  # pyright: ignore[reportPrivateImportUsage]
        return list(tensors.keys())


def _converted(file: Path, weights: str, factors: Mapping[str, Factors]) -> Iterator[tuple[str, Any]]:
    with safe_open(file, framework="pt") as tensors:  # pyright: ignore[reportPrivateImportUsage]
        for name in tensors.keys():  # noqa: SIM118  not a dict
            tensor = tensors.get_tensor(name)
            dtype = tensor.dtype
            if name in factors:
                tensor = factors[name].applied(tensor)
            if ".experts." in name:
                raise RecipeError("the model has experts, whose weights are not converted")
            if is_quantized(name, tuple(tensor.shape)) and tensor.is_floating_point():
                yield from MAKERS[weights](name, tensor).items()
            else:
                yield name, tensor.to(dtype)


def _copy_others(model: Path, out: Path) -> None:
    """Copy the tokenizer and the other small files."""
    for path in model.iterdir():
        is_weights = path.suffix == ".safetensors" or path.name == INDEX
        if path.is_file() and not is_weights and path.stat().st_size <= LARGEST_OTHER_BYTES:
            shutil.copyfile(path, out / path.name)


def _size(files: Any) -> int:
    return sum(file.stat().st_size for file in files)


def run(args: argparse.Namespace) -> int:
    before, after = quantize(args.model, args.out / "model", args.weights, is_smoothed=not args.no_comparison)
    note(f"{args.out / 'model'}: {before:,} bytes of weights became {after:,}")
    found: dict[str, Any] = {"weights": args.weights, "original_bytes": before, "bytes": after}
    if args.no_comparison:
        found |= {"state": "not_run", "reason": args.no_comparison}
    else:
        found |= {"state": "done", **compare(args.model, args.out / "model")}
    text = json.dumps(found, indent=2)
    (args.out / ".quality.json").write_text(text, encoding="utf-8")
    (args.out / ".quality.json").replace(args.out / "quality.json")
    print(text)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Make a copy of a model with weights of 8 or 4 bits, and compare its quality.",
        epilog="example: python3 quantize.py base_model OUT --weights int8",
    )
    parser.add_argument("model", type=Path, help="folder with config.json and *.safetensors")
    parser.add_argument("out", type=Path, help="folder for the copy and the comparison")
    parser.add_argument("--weights", choices=tuple(MAKERS), required=True, help="bits of the layers' weights")
    parser.add_argument("--no-comparison", metavar="REASON", help="do not compare; the reason is recorded")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
