"""Write a whole model as its base is stored: the same type of its weights, the same files beside them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

LARGEST_FILE = "50GB"


def stored_type(model: str) -> torch.dtype:
    """Return the type of the base's weights on disk."""
    found: Any = getattr(AutoConfig.from_pretrained(model), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def save_whole(model: Any, base: str, folder: Path) -> None:
    """Write the weights of a model that was trained in float32, with its configuration."""
    dtype = stored_type(base)
    copied = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    copied.config._name_or_path = ""  # a path of this run
    copied.save_pretrained(folder, max_shard_size=LARGEST_FILE)
    copy_generation_config(base, folder)


def copy_generation_config(base: str, folder: Path) -> None:
    if (Path(base) / "generation_config.json").is_file():
        GenerationConfig.from_pretrained(base).save_pretrained(folder)
