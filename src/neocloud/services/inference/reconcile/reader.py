"""Inspect the folder of a model or a LoRA adapter, and return its status. Nothing in it is executed."""

import asyncio
import re
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.untrusted_files import Folder, UnsafePath
from neocloud.core.untrusted_trees import content_digest
from neocloud.messages.neocloud.inference.v1 import ModelStatus
from neocloud.services.inference.public import Location, weights_digest
from neocloud.services.inference.reconcile.weights import (
    BadWeights,
    Tensor,
    Weights,
    check_folder,
    check_modules,
    has_file,
    main_dtype,
    read_json,
    read_tensors,
    read_weights,
    size_of,
)
from neocloud.services.inference.rules.memory import LARGEST_RANK
from neocloud.services.inference.types import ADAPTER_WEIGHTS

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
    """Inspect an adapter. Raises BadWeights with the missing file, or why it does not fit its base."""
    check_folder(folder)
    if not has_file(folder, "adapter_config.json"):
        raise BadWeights(
            f"{folder.path} has no adapter_config.json; an adapter's folder holds that and {ADAPTER_WEIGHTS}."
            " For a whole model leave out its base."
        )
    if not has_file(folder, ADAPTER_WEIGHTS):
        raise BadWeights(f"{folder.path} has no {ADAPTER_WEIGHTS}")
    config = read_json(folder, "adapter_config.json")
    if config.get("peft_type") != "LORA":
        raise BadWeights(f'adapter_config.json says "peft_type" {config.get("peft_type")!r}; LORA is served')
    whole_layers = config.get("modules_to_save")
    if whole_layers:
        names = ", ".join(map(str, whole_layers)) if isinstance(whole_layers, list) else str(whole_layers)
        raise BadWeights(
            f"the adapter also holds whole layers ({names}), which the model server cannot serve beside"
            " its base. Train without modules_to_save, or merge the adapter into the weights and add"
            " a whole model"
        )
    for field, words in (("use_dora", "DoRA"), ("lora_bias", "biases")):
        if config.get(field):
            raise BadWeights(
                f"the adapter was trained with {words}, which the model server does not serve; merge it"
            )
    if config.get("bias", "none") != "none":
        raise BadWeights('the adapter also holds biases; train with bias="none", or merge it')
    rank = config.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= LARGEST_RANK:
        raise BadWeights(
            f"the adapter has rank {rank!r}; ranks from 1 to {LARGEST_RANK} are served, or merge it"
        )
    tensors = read_tensors(folder, ADAPTER_WEIGHTS)
    return Adapter(
        rank=rank,
        target_modules=_checked_modules(tensors, rank, base),
        parameters=sum(tensor.parameters for tensor in tensors),
        size_bytes=size_of(folder, ADAPTER_WEIGHTS),
        dtype=main_dtype(tensors),
    )


def _checked_modules(tensors: tuple[Tensor, ...], rank: int, base: Weights) -> tuple[str, ...]:
    """Return the modules that it changes. Raises BadWeights unless its base has them, in its size."""
    found: set[str] = set()
    for tensor in tensors:
        before, mark, _ = tensor.name.partition(".lora_")
        if not mark:
            raise BadWeights(
                f"{tensor.name} is not part of a LoRA adapter; merge the adapter, or train without it"
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
            f"it changes {', '.join(unknown) or 'nothing'}, which its base does not have: it was"
            " trained on another model"
        )
    outside = sorted(found - base.adaptable_modules)
    if outside:
        raise BadWeights(
            f"it changes {', '.join(outside)}, which the model server does not serve beside its base: merge"
            " the adapter into the weights and add a whole model"
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


class ModelReader(Protocol):
    reads_files: bool
    """False: models are simulated, so nothing is fetched or must lie in an open folder."""

    async def read(self, folder: Location, base_folder: Location | None) -> ModelStatus:
        """Return the inspected fields of the status; of an adapter if there is a base. Raises BadWeights."""
        ...


class FolderReader:
    """Reads real folders, in a thread: hashing takes seconds for each ten gigabytes."""

    reads_files = True

    async def read(self, folder: Location, base_folder: Location | None) -> ModelStatus:
        try:
            if base_folder is None:
                return await asyncio.to_thread(_model, folder)
            return await asyncio.to_thread(_adapter, folder, base_folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadWeights(f"{folder} is not a folder on this machine") from error
        except UnsafePath as error:
            raise BadWeights(str(error)) from error
        except OSError as error:
            raise BadWeights(
                f"{error.filename or folder} cannot be read: {error.strerror or error}"
            ) from error


def _model(location: Location) -> ModelStatus:
    with location.folder() as folder:
        found = read_weights(folder)
        digest = weights_digest(folder)
    return ModelStatus(
        architecture=found.architecture.name,
        context_length=found.architecture.context_length,
        parameters=found.parameters,
        size_bytes=found.size_bytes,
        dtype=found.dtype,
        kv_bytes_per_token=found.architecture.kv_bytes_per_token,
        adapter_bytes_per_rank=found.architecture.adapter_bytes_per_rank,
        digest=digest,
        has_chat_template=found.has_chat_template,
        target_modules=sorted(found.adaptable_modules),
    )


def _adapter(location: Location, base_location: Location) -> ModelStatus:
    with location.folder() as folder, base_location.folder() as base_folder:
        base = read_weights(base_folder)
        found = read_adapter(folder, base)
        digest = content_digest(folder, [ADAPTER_WEIGHTS])
    return ModelStatus(
        architecture=base.architecture.name,
        context_length=base.architecture.context_length,
        parameters=found.parameters,
        size_bytes=found.size_bytes,
        dtype=found.dtype,
        lora_rank=found.rank,
        target_modules=found.target_modules,
        digest=digest,
        has_chat_template=base.has_chat_template,
    )
