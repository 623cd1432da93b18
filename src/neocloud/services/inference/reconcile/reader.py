"""Inspect the folder of a model or a LoRA adapter, and return its status. Nothing in it is executed."""

import asyncio
import re
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.json_values import is_list
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.core.untrusted.trees import content_digest
from neocloud.messages.neocloud.inference.v1 import ModelStatus
from neocloud.services.inference.public import Location, weights_digest
from neocloud.services.inference.reconcile.weights import (
    DTYPES,
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
from neocloud.services.inference.rules.tool_calls import parser_of, shows_tools
from neocloud.services.inference.types import ADAPTER_WEIGHTS

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_PEFT_PREFIX = "base_model.model."
_SIDES = ("A", "B")


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
        names = ", ".join(map(str, whole_layers)) if is_list(whole_layers) else str(whole_layers)
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
    patterns = [name for name in ("rank_pattern", "alpha_pattern") if config.get(name)]
    if patterns:
        raise BadWeights(
            f"adapter_config.json has {patterns[0]}, and the model server has one rank and one alpha for all"
            " modules; train without it, or merge the adapter"
        )
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
    """Return the modules that it changes. Raises BadWeights unless its base has each one at the same path, in
    its size, and both of its matrices are there."""
    paths = BasePaths(base)
    found: dict[str, set[str]] = {}
    for tensor in tensors:
        path, side = _path_and_side(tensor)
        module = path.rpartition(".")[2]
        _check_module(path, module, tensor, base)
        weight = paths.find(path)
        if weight is None:
            raise BadWeights(
                f"{tensor.name} changes {path}, which its base does not have"
                f" ({paths.example(module)}): it was trained on another model, or its tensors were renamed"
            )
        if side in found.setdefault(path, set()):
            raise BadWeights(f"it holds lora_{side} of {path} twice; save it again")
        found[path].add(side)
        _check_shape(tensor, side, rank, weight)
    if not found:
        raise BadWeights(
            "it changes nothing, which no adapter of its base does: it was trained on another model"
        )
    half = next((path for path, sides in found.items() if len(sides) < len(_SIDES)), None)
    if half is not None:
        missing = next(side for side in _SIDES if side not in found[half])
        raise BadWeights(f"it lacks lora_{missing} of {half}; copy it again, or save it again")
    return tuple(sorted({path.rpartition(".")[2] for path in found}))


def _path_and_side(tensor: Tensor) -> tuple[str, str]:
    """Return the path of the module in the base, and "A" or "B". Raises BadWeights for any other name."""
    path, mark, end = tensor.name.removeprefix(_PEFT_PREFIX).partition(".lora_")
    if not mark:
        raise BadWeights(
            f"{tensor.name} is not part of a LoRA adapter; merge the adapter, or train without it"
        )
    side, _, kind = end.partition(".")
    if kind == "weight" and side in _SIDES:
        return path, side
    named = kind.removesuffix(".weight")
    if side in _SIDES and kind.endswith(".weight"):
        raise BadWeights(
            f"{tensor.name} has the name of an adapter in it ({named}), which the model server does not load;"
            " save it with save_pretrained, which leaves that out"
        )
    raise BadWeights(
        f"{tensor.name} is not lora_A.weight or lora_B.weight of a module, which is all that the model server"
        " applies; merge the adapter into the weights and add a whole model"
    )


def _check_module(path: str, module: str, tensor: Tensor, base: Weights) -> None:
    """Raise BadWeights where the base has no such module or layer, or the model server does not adapt it."""
    check_modules((module,))
    layer = _LAYER.search(f".{path}.")
    if layer and int(layer[1]) >= base.architecture.layers:
        raise BadWeights(
            f"it changes layer {layer[1]} and its base has {base.architecture.layers}: it was trained on"
            " another model"
        )
    if module not in base.module_names:
        raise BadWeights(
            f"it changes {module}, which its base does not have: it was trained on another model"
            f" (the first tensor of it is {tensor.name})"
        )
    if module not in base.adaptable_modules:
        raise BadWeights(
            f"it changes {module}, which the model server does not serve beside its base: merge"
            " the adapter into the weights and add a whole model"
        )


def _check_shape(tensor: Tensor, side: str, rank: int, weight: Tensor) -> None:
    """Raise BadWeights unless its sizes are the rank and that side of the base's matrix."""
    if len(tensor.shape) != len(_SIDES):
        raise BadWeights(f"{tensor.name} is not a matrix: its shape is {list(tensor.shape)}")
    own_rank, width = tensor.shape if side == "A" else reversed(tensor.shape)
    if own_rank != rank:
        raise BadWeights(f"{tensor.name} has rank {own_rank} where adapter_config.json says {rank}")
    if len(weight.shape) != len(_SIDES) or weight.dtype not in DTYPES:
        return  # packed: its shape is not that of the matrix
    size = weight.shape[1] if side == "A" else weight.shape[0]
    if width != size:
        raise BadWeights(
            f"{tensor.name} is for a width of {width} and its base has {size}: it was trained on"
            " another model"
        )


class BasePaths:
    """The modules of a base by their paths."""

    def __init__(self, base: Weights) -> None:
        matrices = [tensor for tensor in base.tensors if tensor.name.count(".")]
        self._has_parts = any("language_model" in tensor.name.split(".") for tensor in matrices)
        self._is_bare = any(tensor.name.startswith("layers.") for tensor in matrices)
        self._weights: dict[str, Tensor] = {}
        for tensor in matrices:
            path = self._normal(tensor.name.rpartition(".")[0])
            if path not in self._weights or tensor.name.endswith(".weight"):
                self._weights[path] = tensor

    def find(self, path: str) -> Tensor | None:
        """Return the matrix of a module, or another tensor of it where it is packed."""
        return self._weights.get(self._normal(path))

    def example(self, module: str) -> str:
        """Say where the base has such a module."""
        path = next((path for path in self._weights if path.rpartition(".")[2] == module), "")
        return f"it has {path}"

    def _normal(self, path: str) -> str:
        """Return a path without the parts around a language model, which libraries nest in either order or
        leave out where weights were saved without their head."""
        if not self._has_parts:
            return path.removeprefix("model.") if self._is_bare else path
        return ".".join(part for part in path.split(".") if part not in ("model", "language_model"))


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
        layer_parameters=found.layer_parameters,
        size_bytes=found.size_bytes,
        dtype=found.dtype,
        kv_bytes_per_token=found.architecture.kv_bytes_per_token,
        adapter_bytes_per_rank=found.architecture.adapter_bytes_per_rank,
        digest=digest,
        has_chat_template=bool(found.chat_template),
        tool_call_parser=parser_of(found.chat_template),
        hides_tools=bool(found.chat_template) and not shows_tools(found.chat_template),
        task=ModelStatus.Task.Value(found.task),
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
        has_chat_template=bool(base.chat_template),
    )
