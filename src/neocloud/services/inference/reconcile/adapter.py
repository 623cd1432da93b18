"""Looks at a LoRA adapter's folder, and whether the engine can serve it on its base. Blocking; executes
nothing."""

import re
from dataclasses import dataclass

from neocloud.core.untrusted_files import Folder
from neocloud.services.inference.reconcile.safetensors import BadWeights, Tensor, main_dtype
from neocloud.services.inference.reconcile.weights import (
    Weights,
    check_folder,
    check_modules,
    has_file,
    read_json,
    read_tensors,
    size_of,
)
from neocloud.services.inference.resources import ADAPTER_WEIGHTS as WEIGHTS
from neocloud.services.inference.rules.shape import LARGEST_RANK

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_INPUT_IS_HIDDEN = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})


@dataclass(frozen=True)
class Adapter:
    rank: int
    target_modules: tuple[str, ...]
    parameters: int
    size_bytes: int
    dtype: str


def read_adapter(folder: Folder, base: Weights) -> Adapter:
    """Raises BadWeights with what is missing, or why it does not go with its base."""
    check_folder(folder)
    if not has_file(folder, "adapter_config.json"):
        raise BadWeights(
            f"{folder.path} has no adapter_config.json; an adapter's folder holds that and {WEIGHTS}."
            " For a whole model leave out its base."
        )
    if not has_file(folder, WEIGHTS):
        raise BadWeights(f"{folder.path} has no {WEIGHTS}")
    config = read_json(folder, "adapter_config.json")
    if config.get("peft_type") != "LORA":
        raise BadWeights(f'adapter_config.json says "peft_type" {config.get("peft_type")!r}; LORA is served')
    if config.get("modules_to_save"):
        names = ", ".join(str(name) for name in config["modules_to_save"])
        raise BadWeights(
            f"the adapter also holds whole layers ({names}), which the engine cannot serve beside its base."
            " Train without modules_to_save, or merge the adapter into the weights and add a whole model"
        )
    for field, words in (("use_dora", "DoRA"), ("lora_bias", "biases")):
        if config.get(field):
            raise BadWeights(
                f"the adapter was trained with {words}, which the engine does not serve; merge it"
            )
    if config.get("bias", "none") != "none":
        raise BadWeights('the adapter also holds biases; train with bias="none", or merge it')
    rank = config.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= LARGEST_RANK:
        raise BadWeights(
            f"the adapter has rank {rank!r}; ranks from 1 to {LARGEST_RANK} are served, or merge it"
        )
    tensors = read_tensors(folder, WEIGHTS)
    return Adapter(
        rank=rank,
        target_modules=_checked_modules(tensors, rank, base),
        parameters=sum(tensor.parameters for tensor in tensors),
        size_bytes=size_of(folder, WEIGHTS),
        dtype=main_dtype(tensors),
    )


def _checked_modules(tensors: tuple[Tensor, ...], rank: int, base: Weights) -> tuple[str, ...]:
    """The layers that it changes; all of them are the base's, and of its size."""
    found: set[str] = set()
    for tensor in tensors:
        before, mark, _ = tensor.name.partition(".lora_")
        if not mark:
            raise BadWeights(
                f"{tensor.name} is no part of a LoRA adapter; merge the adapter, or train without it"
            )
        module = before.rpartition(".")[2]
        found.add(module)
        layer = _LAYER.search(tensor.name)
        if layer and int(layer[1]) >= base.architecture.layers:
            raise BadWeights(
                f"it changes layer {layer[1]} and its base has {base.architecture.layers}: it was trained on"
                " another model"
            )
        if tensor.name.endswith("lora_A.weight"):
            _check_shape(tensor, module, rank, base)
    check_modules(frozenset(found))
    unknown = sorted(found - base.module_names)
    if unknown or not found:
        raise BadWeights(
            f"it changes {', '.join(unknown) or 'nothing'}, which its base has not: it was trained on another"
            " model"
        )
    outside = sorted(found - base.adaptable_modules)
    if outside:
        raise BadWeights(
            f"it changes {', '.join(outside)}, which the engine does not serve beside its base: merge the"
            " adapter into the weights and add a whole model"
        )
    return tuple(sorted(found))


def _check_shape(tensor: Tensor, module: str, rank: int, base: Weights) -> None:
    hidden = base.architecture.hidden_size
    if tensor.shape[0] != rank:
        raise BadWeights(f"{tensor.name} has rank {tensor.shape[0]} where adapter_config.json says {rank}")
    if module in _INPUT_IS_HIDDEN and tensor.shape[1] != hidden:
        raise BadWeights(
            f"{tensor.name} is for a width of {tensor.shape[1]} and its base has {hidden}: it was trained on"
            " another model"
        )
