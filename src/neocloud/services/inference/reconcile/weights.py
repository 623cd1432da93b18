"""Inspect a folder of weights: whether it is complete, its architecture and size. Executes nothing from it.

No link may lead out of the folder: the files served are those inspected. A tenant may change them at any
moment, so all is read below an open folder. A safetensors header is a length and JSON; only headers are read.
Functions block: call them in a thread.
"""

import json
import math
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from neocloud.core.json_values import as_list, as_object, is_object
from neocloud.core.untrusted.files import MAX_TREE_DEPTH, Folder, UnsafePath
from neocloud.services.inference.architectures import refusal
from neocloud.services.inference.public import weight_names
from neocloud.services.inference.rules.memory import (
    LARGEST_NUMBER,
    Architecture,
    UnknownArchitecture,
    read_architecture,
)
from neocloud.services.inference.rules.task import GENERATE, UnservedTask, task_of
from neocloud.services.inference.types import MODULE_NAME, WEIGHTS_INDEX

LARGEST_HEADER_BYTES = 100_000_000
DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
}


class BadWeights(ValueError):
    """Weights that cannot be served; the message names the file and the fault."""


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def read_header(file: BinaryIO, name: str) -> tuple[Tensor, ...]:
    """Return the tensors of a safetensors file. Raises BadWeights; `name` is for its message."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= min(LARGEST_HEADER_BYTES, size - 8):
        raise BadWeights(f"{name} is not a safetensors file, or is truncated; copy it again")
    text = file.read(length)
    try:
        header = json.loads(text)
        tensors = [_tensor(each, entry) for each, entry in header.items() if each != "__metadata__"]
        end = max(
            (entry["data_offsets"][1] for each, entry in header.items() if each != "__metadata__"), default=0
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadWeights(f"{name} has a header that cannot be read: {error}") from error
    if 8 + length + end > size:
        raise BadWeights(f"{name} is truncated: {size:,} bytes of {8 + length + end:,}; copy it again")
    return tuple(tensors)


def main_dtype(tensors: tuple[Tensor, ...]) -> str:
    """Return the data type of most of the bytes."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size_bytes
    most = max(sizes, key=lambda name: sizes[name], default="")
    return DTYPES.get(most, most.lower())


def _tensor(name: str, entry: Any) -> Tensor:
    first, last = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    return Tensor(name, str(entry["dtype"]), shape, int(last) - int(first))


TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
CHAT_TEMPLATE = "chat_template.jinja"
SENTENCE_MODULES = "modules.json"
_INPUT_LIMITS = (
    (re.compile(r"sentence_[a-z-]{1,20}_config\.json"), "max_seq_length"),
    (re.compile(r"tokenizer_config\.json"), "model_max_length"),
)
"""Files with the length that a model's input was cut to when it was trained, and the field of it."""
_MATRIX = re.compile(r"\.\d+\..*\.weight$")
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})


@dataclass(frozen=True)
class Weights:
    """The contents of a whole model's folder."""

    architecture: Architecture
    tensors: tuple[Tensor, ...]
    size_bytes: int
    dtype: str
    chat_template: str
    """"" for none. Of a folder with several, the one that is used by default."""
    task: str
    """The name of a ModelStatus.Task: what the model is made for."""

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def layer_parameters(self) -> int:
        """The parameters in the matrices of the repeated layers, without routers."""
        return sum(each.parameters for each in self.tensors if _is_matrix(each))

    @property
    def module_names(self) -> frozenset[str]:
        """Last parts of the names of layers: "q_proj", "lm_head"."""
        return frozenset(tensor.name.split(".")[-2] for tensor in self.tensors if tensor.name.count("."))

    @property
    def adaptable_modules(self) -> frozenset[str]:
        """The modules that adapters may change: matrices of the repeated layers, without embeddings, output
        layer and routers between experts."""
        return frozenset(each.name.split(".")[-2] for each in self.tensors if _is_matrix(each))


def _is_matrix(tensor: Tensor) -> bool:
    is_repeated = len(tensor.shape) == 2 and bool(_MATRIX.search(tensor.name))
    return is_repeated and tensor.name.split(".")[-2] not in _ROUTERS


def read_weights(folder: Folder) -> Weights:
    """Inspect a whole model. Raises BadWeights with the file that is missing or wrong; OSError."""
    check_folder(folder)
    if not has_file(folder, "config.json"):
        hint = (
            " It holds a LoRA adapter: name its base model."
            if has_file(folder, "adapter_config.json")
            else ""
        )
        raise BadWeights(
            f"{folder.path} has no config.json; a model's folder holds config.json, *.safetensors and"
            f" tokenizer files.{hint}"
        )
    config = read_json(folder, "config.json")
    try:
        architecture = read_architecture(config)
    except UnknownArchitecture as error:
        raise BadWeights(str(error)) from error
    if reason := refusal(config, architecture.name):
        raise BadWeights(reason)
    if not any(has_file(folder, name) for name in TOKENIZERS):
        raise BadWeights(f"{folder.path} has no tokenizer: one of {', '.join(TOKENIZERS)}")
    names = _weight_files(folder)
    tensors = tuple(tensor for name in names for tensor in read_tensors(folder, name))
    try:
        task = task_of(architecture.name, config, _modules(folder))
    except UnservedTask as error:
        raise BadWeights(str(error)) from error
    if task != GENERATE:
        longest = min(architecture.context_length, *_input_limits(folder))
        architecture = replace(architecture, context_length=longest)
    found = Weights(
        architecture=architecture,
        tensors=tensors,
        size_bytes=sum(size_of(folder, name) for name in names),
        dtype=architecture.dtype or main_dtype(tensors),
        chat_template=_chat_template(folder),
        task=task,
    )
    check_modules(found.adaptable_modules)
    return found


def check_modules(names: frozenset[str] | tuple[str, ...]) -> None:
    """Raise BadWeights if the name of a layer could be taken for an option of the model server."""
    wrong = sorted(name for name in names if not MODULE_NAME.fullmatch(name))
    if wrong:
        raise BadWeights(
            f"{wrong[0]!r} is not a valid name of a layer: only letters, digits and _ are accepted"
        )


def check_folder(folder: Folder) -> None:
    """Raise BadWeights if a link leads out of the folder, or it holds anything but files and folders."""
    _check_below(folder, folder, PurePosixPath())


def _check_below(root: Folder, folder: Folder, path: PurePosixPath) -> None:
    if len(path.parts) > MAX_TREE_DEPTH:
        raise BadWeights(f"{folder.path} is more than {MAX_TREE_DEPTH} folders deep")
    for name in folder.names():
        try:
            with folder.pinned(name) as found:
                is_folder = stat.S_ISDIR(os.fstat(found).st_mode)
        except UnsafePath:
            _check_link(root, path / name)
            continue
        if is_folder:
            with folder.folder(name) as inner:
                _check_below(root, inner, path / name)


def _check_link(root: Folder, path: PurePosixPath) -> None:
    """Raise BadWeights unless the link is relative and inside the folder; only such links are served."""
    try:
        with root.pinned(path, inner_links=True):
            return
    except OSError as error:
        raise BadWeights(
            f"{path} is a link out of the folder, or not a file; copy it with its contents (cp -rL)"
        ) from error


def has_file(folder: Folder, name: str) -> bool:
    return folder.has_file(name, inner_links=True)


def size_of(folder: Folder, name: str) -> int:
    with folder.file(name, inner_links=True) as file:
        return os.fstat(file.fileno()).st_size


def read_tensors(folder: Folder, name: str) -> tuple[Tensor, ...]:
    with folder.file(name, inner_links=True) as file:
        return read_header(file, name)


def _weight_files(folder: Folder) -> tuple[str, ...]:
    """Return the safetensors files of the model. Raises BadWeights if one is missing."""
    try:
        names = weight_names(folder)
    except ValueError as error:
        raise BadWeights(str(error)) from error
    if has_file(folder, WEIGHTS_INDEX):
        missing = [name for name in names if not has_file(folder, name)]
        if missing or not names:
            lacking = ", ".join(missing) or "weights"
            raise BadWeights(f"{folder.path} lacks {lacking}, which {WEIGHTS_INDEX} lists")
    elif not names:
        other = next((name for name in folder.names() if name.endswith((".bin", ".pt", ".gguf"))), "")
        why = f"; {other} is not supported; save it as safetensors" if other else ""
        raise BadWeights(f"{folder.path} has no *.safetensors{why}")
    return names


def read_json(folder: Folder, name: str) -> Mapping[str, object]:
    """Return a JSON file of at most MAX_READ_BYTES. Raises BadWeights; OSError."""
    content = _content(folder, name)
    if not is_object(content):
        raise BadWeights(f"{name} is not a JSON object")
    return content


def _content(folder: Folder, name: str) -> object:
    try:
        return json.loads(folder.read(name, inner_links=True))
    except (ValueError, RecursionError) as error:
        raise BadWeights(f"{name} is not valid JSON: {error}") from error


def _modules(folder: Folder) -> object:
    return _content(folder, SENTENCE_MODULES) if has_file(folder, SENTENCE_MODULES) else None


def _input_limits(folder: Folder) -> list[int]:
    """Return the lengths that the files beside the weights limit an input to. The model server of vectors
    refuses to start with a longer one."""
    found = [LARGEST_NUMBER]
    for name in folder.names():
        for pattern, field in _INPUT_LIMITS:
            if pattern.fullmatch(name):
                limit = as_object(_content(folder, name)).get(field)
                if isinstance(limit, int) and limit > 0:
                    found.append(limit)
    return found


def _chat_template(folder: Folder) -> str:
    if has_file(folder, CHAT_TEMPLATE):
        return folder.read(CHAT_TEMPLATE, inner_links=True).decode("utf-8", errors="replace") or " "
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not has_file(folder, name):
            continue
        found = read_json(folder, name).get("chat_template")
        if found or name == "chat_template.json":
            return _default_template(found)
    return ""


def _default_template(found: object) -> str:
    """Return the template, of several with names the default one; " " for one in another form."""
    named = {str(row.get("name")): row.get("template") for row in map(as_object, as_list(found))}
    text = named.get("default", found)
    return text if isinstance(text, str) and text else " "
