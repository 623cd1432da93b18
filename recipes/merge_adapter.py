#!/usr/bin/env python3
"""Write a LoRA adapter into the weights of its base: a whole model that serves without overhead.

The folder appears only when it is whole. Types stay those of the base model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

from chat_tokens import load_tokenizer
from lora_model import load_base, with_adapter
from recipe_errors import RecipeError, exit_code, note


def stored_type(model: str) -> torch.dtype:
    """The type that the base's weights have on disk."""
    found: Any = getattr(AutoConfig.from_pretrained(model), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def merge(model: str, adapter: Path, output: Path) -> None:
    dtype = stored_type(model)
    # Small updates vanish when they are added in 16 bits.
    merged = with_adapter(load_base(model, torch.float32), adapter).to(dtype)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    merged.save_pretrained(partial)
    load_tokenizer(model).save_pretrained(partial)
    if (Path(model) / "generation_config.json").is_file():
        GenerationConfig.from_pretrained(model).save_pretrained(partial)
    partial.rename(output)


def run(args: argparse.Namespace) -> int:
    if args.output.exists():
        raise RecipeError(f"{args.output}: is there already; name another folder with --output")
    merge(args.model, args.adapter, args.output)
    note(f"{args.output}: model written with {args.adapter} in its weights")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write a LoRA adapter into the weights of its base model.",
        epilog="example: python3 merge_adapter.py --model base_model --adapter run1/adapter --output merged",
    )
    parser.add_argument("--model", required=True, help="base model: local folder or hub id")
    parser.add_argument("--adapter", required=True, type=Path, help="folder that finetune.py wrote")
    parser.add_argument("--output", required=True, type=Path, help="folder to make")
    return exit_code(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
