#!/usr/bin/env python3
"""Merge a LoRA adapter into the weights of its base: a whole model that serves without overhead.

The folder appears only when it is complete. Types stay those of the base model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import torch
    from transformers import AutoConfig, GenerationConfig

    from chat_tokens import load_tokenizer
    from lora_model import load_base, with_adapter


@dataclass(frozen=True)
class Options:
    model: str
    adapter: Path
    output: Path


def stored_type(model: str) -> torch.dtype:
    """Return the type of the base's weights on disk."""
    found: Any = getattr(AutoConfig.from_pretrained(model), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def merge(model: str, adapter: Path, output: Path) -> None:
    dtype = stored_type(model)
    # Small updates are lost when they are added in 16 bits.
    merged = with_adapter(load_base(model, torch.float32), adapter).to(dtype)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    merged.save_pretrained(partial)
    load_tokenizer(model).save_pretrained(partial)
    if (Path(model) / "generation_config.json").is_file():
        GenerationConfig.from_pretrained(model).save_pretrained(partial)
    partial.rename(output)


def run(options: Options) -> int:
    if options.output.exists():
        raise RecipeError(f"{options.output}: exists already; name another folder with --output")
    merge(options.model, options.adapter, options.output)
    note(f"{options.output}: model written with {options.adapter} in its weights")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Merge a LoRA adapter into the weights of its base model.",
        epilog="example: python3 merge_adapter.py --model base_model --adapter run1/adapter --output merged",
    )
    parser.add_argument("--model", required=True, help="base model: local folder or hub id")
    parser.add_argument("--adapter", type=Path, required=True, help="folder that finetune.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    return exit_code(run, Options(**vars(parser.parse_args(argv))))


if __name__ == "__main__":
    sys.exit(main())
