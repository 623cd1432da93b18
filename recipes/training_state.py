"""Save the state of a fine-tuning run to checkpoints, and load it again.

The adapter is stored as `peft` stores it, and a whole model as `transformers` does, so any checkpoint can be
evaluated or served as it is; the optimiser's state lies beside it and is left out of the result.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import peft
import safetensors
import safetensors.torch
import torch

from checkpoint import Checkpoint, WriteFile
from recipe_errors import RecipeError
from training_step import TrainingStep

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
WHOLE, WHOLE_CONFIG = "model.safetensors", "config.json"
OPTIMIZER = "optimizer.pt"


def adapter_files(model: Any) -> dict[str, WriteFile]:
    """Return writers for a copy of the current adapter."""
    state = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {name: _copy(tensor).contiguous() for name, tensor in state.items()}
    config = copy.deepcopy(model.peft_config["default"])
    config.inference_mode = True
    return {
        WEIGHTS: _naming_full_disk(lambda path: safetensors.torch.save_file(weights, path, {"format": "pt"})),
        CONFIG: lambda path: config.save_pretrained(path.parent),
    }


def whole_files(model: Any) -> dict[str, WriteFile]:
    """Return writers for a copy of all weights. Those that layers share are stored once."""
    weights = {name: _copy(tensor).contiguous() for name, tensor in model.named_parameters()}
    config = copy.deepcopy(model.config)
    return {
        WHOLE: _naming_full_disk(lambda path: safetensors.torch.save_file(weights, path, {"format": "pt"})),
        WHOLE_CONFIG: lambda path: config.save_pretrained(path.parent),
    }


def snapshot(step: TrainingStep) -> dict[str, WriteFile]:
    """Return writers for a copy of everything a resume needs; training may continue immediately."""
    state = {"optimizer": step.optimizer.state_dict(), "scaler": step.scaler.state_dict()}
    state = _copy(state)
    weights = adapter_files(step.model) if step.arguments.lora else whole_files(step.model)
    return {**weights, OPTIMIZER: _naming_full_disk(lambda path: torch.save(state, path))}


def load(path: Path, step: TrainingStep) -> None:
    """Load a checkpoint's tensors into the model and the optimiser."""
    if step.arguments.lora:
        peft.set_peft_model_state_dict(step.model, safetensors.torch.load_file(path / WEIGHTS))
    else:
        stored = safetensors.torch.load_file(path / WHOLE)
        with torch.no_grad():
            for name, weight in step.model.named_parameters():
                weight.copy_(stored[name])
    state = torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True)
    step.optimizer.load_state_dict(state["optimizer"])
    step.scaler.load_state_dict(state["scaler"])


def check_same_run(identity: dict[str, Any], found: Checkpoint) -> None:
    """Refuse to continue a run on other data or with another adapter shape."""
    stored = found.state["identity"]
    for key, value in identity.items():
        if stored.get(key) != value:
            raise RecipeError(
                f"{found.path} belongs to another run: {key} was {stored.get(key)!r}, is now"
                f" {value!r}; choose another output_dir, or remove this one to start again"
            )


def _naming_full_disk(write: WriteFile) -> WriteFile:
    """Wrap a writer so that its errors name a full disk, which the libraries' messages do not."""

    def write_or_explain(path: Path) -> None:
        try:
            write(path)
        except (RuntimeError, safetensors.SafetensorError) as error:
            free = shutil.disk_usage(path.parent).free >> 20
            raise RecipeError(f"{path}: cannot be written ({error}); {free} MiB are free there") from error

    return write_or_explain


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
