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

from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import torch

    from chat_tokens import load_tokenizer
    from lora_model import load_base, with_adapter
    from stored_model import copy_generation_config, stored_type


@dataclass(frozen=True)
class Options:
    model: str
    adapter: Path
    output: Path


def merge(model: str, adapter: Path, output: Path) -> None:
    dtype = stored_type(model)
    # Small updates are lost when they are added in 16 bits.
    merged = with_adapter(load_base(model, torch.float32), adapter).to(dtype)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    merged.save_pretrained(partial)
    load_tokenizer(model).save_pretrained(partial)
    copy_generation_config(model, partial)
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
