"""Looks at a folder of weights: is it whole, what is it, how large. Reads only; executes nothing from it.

No link may lead out of the folder: what is served is what was looked at. Blocking: call it in a thread.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.services.inference.reconcile.safetensors import BadWeights, Tensor, main_dtype, read_header
from neocloud.services.inference.rules.architecture import (
    Architecture,
    UnknownArchitecture,
    read_architecture,
)

LARGEST_JSON_BYTES = 64 * 1024**2
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_MATRIX = re.compile(r"\.\d+\..*\.weight$")
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
_HASH_CHUNK = 4 * 1024**2


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


def read_weights(folder: Path) -> Weights:
    """Raises BadWeights with what is missing or wrong."""
    check_folder(folder)
    if not (folder / "config.json").is_file():
        hint = (
            " It holds a LoRA adapter: name its base model."
            if (folder / "adapter_config.json").exists()
            else ""
        )
        raise BadWeights(
            f"{folder} has no config.json; a model's folder holds config.json, *.safetensors and tokenizer"
            f" files.{hint}"
        )
    try:
        architecture = read_architecture(read_json(folder / "config.json"))
    except UnknownArchitecture as error:
        raise BadWeights(str(error)) from error
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise BadWeights(f"{folder} has no tokenizer: one of {', '.join(TOKENIZERS)}")
    files = weight_files(folder)
    tensors = tuple(tensor for file in files for tensor in read_header(file))
    return Weights(
        architecture=architecture,
        tensors=tensors,
        size_bytes=sum(file.stat().st_size for file in files),
        dtype=architecture.dtype or main_dtype(tensors),
        has_chat_template=_has_chat_template(folder),
    )


def check_folder(folder: Path) -> None:
    """It is there, and no link in it leads out."""
    if not folder.is_dir():
        raise BadWeights(f"{folder} is no folder on this machine")
    real = folder.resolve()
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(real):
            raise BadWeights(
                f"{path.relative_to(folder)} is a link out of the folder; copy it with its contents (cp -rL)"
            )


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that belong to the model, all of them there."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = read_json(index).get("weight_map")
        names = sorted(set(parts.values())) if isinstance(parts, Mapping) else []
        if any("/" in name for name in names):
            raise BadWeights(f"{index.name} names files outside of the folder")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            raise BadWeights(f"{folder} lacks {', '.join(missing) or 'weights'}, which {index.name} names")
        return tuple(folder / name for name in names)
    found = tuple(sorted(folder.glob("*.safetensors")))
    if not found:
        other = next(
            (path.name for pattern in ("*.bin", "*.pt", "*.gguf") for path in folder.glob(pattern)), ""
        )
        why = f"; {other} is not taken, save it as safetensors" if other else ""
        raise BadWeights(f"{folder} has no *.safetensors{why}")
    return found


def digest(files: tuple[Path, ...]) -> str:
    """SHA-256 over names and contents, in the order of names."""
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as source:
            while chunk := source.read(_HASH_CHUNK):
                found.update(chunk)
    return found.hexdigest()


def read_json(file: Path) -> Mapping[str, Any]:
    if file.stat().st_size > LARGEST_JSON_BYTES:
        raise BadWeights(f"{file.name} is larger than {LARGEST_JSON_BYTES:,} bytes")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadWeights(f"{file.name} is no JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise BadWeights(f"{file.name} is no JSON object")
    return content


def _has_chat_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in CHAT_TEMPLATES):
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))
