"""Looks at a folder of weights: is it whole, what is it, how large. Reads only; executes nothing from it.

No link may lead out of the folder: what is served is what was looked at. Who can write there may change it at
any moment, so all is read below an open folder. Blocking: call it in a thread.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from neocloud.core.untrusted_files import MAX_TREE_DEPTH, Folder, UnsafePath
from neocloud.services.inference.reconcile.safetensors import BadWeights, Tensor, main_dtype, read_header
from neocloud.services.inference.resources import (
    MODULE_NAME,
    WEIGHTS_INDEX,
    weight_names,
)
from neocloud.services.inference.rules.architecture import (
    Architecture,
    UnknownArchitecture,
    read_architecture,
)

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_MATRIX = re.compile(r"\.\d+\..*\.weight$")
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})


@dataclass(frozen=True)
class Weights:
    """A whole model, as its folder says."""

    architecture: Architecture
    tensors: tuple[Tensor, ...]
    size_bytes: int
    dtype: str
    has_chat_template: bool

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def module_names(self) -> frozenset[str]:
        """Last parts of the names of layers: "q_proj", "lm_head"."""
        return frozenset(tensor.name.split(".")[-2] for tensor in self.tensors if tensor.name.count("."))

    @property
    def adaptable_modules(self) -> frozenset[str]:
        """Of those, what adapters may change: matrices of the repeated layers. Not the words at either end of
        the model, nor what routes between experts."""
        matrices = (each.name for each in self.tensors if len(each.shape) == 2 and _MATRIX.search(each.name))
        return frozenset(name.split(".")[-2] for name in matrices) - _ROUTERS


def read_weights(folder: Folder) -> Weights:
    """Raises BadWeights with what is missing or wrong; OSError."""
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
    try:
        architecture = read_architecture(read_json(folder, "config.json"))
    except UnknownArchitecture as error:
        raise BadWeights(str(error)) from error
    if not any(has_file(folder, name) for name in TOKENIZERS):
        raise BadWeights(f"{folder.path} has no tokenizer: one of {', '.join(TOKENIZERS)}")
    names = _weight_files(folder)
    tensors = tuple(tensor for name in names for tensor in read_tensors(folder, name))
    found = Weights(
        architecture=architecture,
        tensors=tensors,
        size_bytes=sum(size_of(folder, name) for name in names),
        dtype=architecture.dtype or main_dtype(tensors),
        has_chat_template=_has_chat_template(folder),
    )
    check_modules(found.adaptable_modules)
    return found


def check_modules(names: frozenset[str] | tuple[str, ...]) -> None:
    """Names of layers become words of an engine's command line: none may look like an option."""
    wrong = sorted(name for name in names if not MODULE_NAME.fullmatch(name))
    if wrong:
        raise BadWeights(f"{wrong[0]!r} is no name of a layer: only letters, digits and _ are taken")


def check_folder(folder: Folder) -> None:
    """No link in it leads out, and it holds nothing but files and folders."""
    _check_below(folder, folder, PurePosixPath())


def _check_below(root: Folder, folder: Folder, place: PurePosixPath) -> None:
    if len(place.parts) > MAX_TREE_DEPTH:
        raise BadWeights(f"{folder.path} is more than {MAX_TREE_DEPTH} folders deep")
    for name in folder.names():
        try:
            with folder.pinned(name) as found:
                is_folder = stat.S_ISDIR(os.fstat(found).st_mode)
        except UnsafePath:
            _check_link(root, place / name)
            continue
        if is_folder:
            with folder.folder(name) as inner:
                _check_below(root, inner, place / name)


def _check_link(root: Folder, place: PurePosixPath) -> None:
    """Relative links inside the folder are followed where it is served, and no others are."""
    try:
        with root.pinned(place, inner_links=True):
            return
    except OSError as error:
        raise BadWeights(
            f"{place} is a link out of the folder, or no file; copy it with its contents (cp -rL)"
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
    """The safetensors files that belong to the model, all of them there."""
    try:
        names = weight_names(folder)
    except ValueError as error:
        raise BadWeights(str(error)) from error
    if has_file(folder, WEIGHTS_INDEX):
        missing = [name for name in names if not has_file(folder, name)]
        if missing or not names:
            lacking = ", ".join(missing) or "weights"
            raise BadWeights(f"{folder.path} lacks {lacking}, which {WEIGHTS_INDEX} names")
    elif not names:
        other = next((name for name in folder.names() if name.endswith((".bin", ".pt", ".gguf"))), "")
        why = f"; {other} is not taken, save it as safetensors" if other else ""
        raise BadWeights(f"{folder.path} has no *.safetensors{why}")
    return names


def read_json(folder: Folder, name: str) -> Mapping[str, Any]:
    """A file of at most MAX_READ_BYTES. Raises BadWeights; OSError."""
    try:
        content = json.loads(folder.read(name, inner_links=True))
    except (ValueError, RecursionError) as error:
        raise BadWeights(f"{name} is no JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise BadWeights(f"{name} is no JSON object")
    return content


def _has_chat_template(folder: Folder) -> bool:
    if any(has_file(folder, name) for name in CHAT_TEMPLATES):
        return True
    settings = "tokenizer_config.json"
    return has_file(folder, settings) and bool(read_json(folder, settings).get("chat_template"))
