"""The interface of inference for other services: the folders that hold weights, and the cost of a project's
tokens.

Between a folder that the operator opened and the weights lie folders that tenants may be able to write in, so
weights are opened by descriptor and no link on the way is followed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from neocloud.core.untrusted.files import Folder
from neocloud.core.untrusted.trees import content_digest
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.inference.types import ADAPTER_WEIGHTS, WEIGHTS_INDEX

_ID = re.compile(r"[a-z0-9]+-e00[a-z0-9]*")
"""The id of a resource. The cloud's own folders among the models have such names, or begin with a dot."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("config.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
)
LARGEST_TOKENIZER_BYTES = 48 * 1024**2
"""All files together; clients take answers of 64 MiB."""
_PARTIAL = re.compile(r"\..*\.partial")
"""A folder that is still being filled."""


class MonthlySpending(Protocol):
    def __call__(self, project_id: str, moment: datetime, /) -> Decimal:
        """Return the US dollars spent on tokens in that moment's calendar month, UTC."""
        ...


class WeightsGone(ValueError):
    """A model's folder may no longer be read, or holds other weights than those that were inspected."""


@dataclass(frozen=True)
class Location:
    """A folder of weights: the folder `path` below `root`, whose own path only the operator can change."""

    root: Path
    path: str = ""

    def __str__(self) -> str:
        return str(self.root / self.path)

    def folder(self) -> Folder:
        """Raises UnsafePath, an OSError, where a link has replaced a folder; FileNotFoundError."""
        if not self.path:
            return Folder.open(self.root)
        with Folder.open(self.root) as root:
            return root.folder(self.path)


class ModelFolders:
    """The folders that may hold weights: those the operator opened, and the cloud's own, `<home>/models`.

    In the cloud's own folder a project may read the sub-folder named by its id, and a model the one named by
    its own id. All other sub-folders belong to other projects, or hold copies for clusters and deployments.
    """

    reads_files = True
    """False: weights are simulated, so none of their files is read or staged."""

    def __init__(self, own: Path, opened: tuple[Path, ...] = ()) -> None:
        self.own = own
        self.opened = opened

    def of_model(self, model_id: str) -> Path:
        """The folder of weights that were fetched for a model."""
        return self.own / model_id

    def of_project(self, project_id: str) -> Path:
        """The folder of a project's copies and products, e.g. adapters that were trained in it."""
        return self.own / project_id

    def of_deployment(self, deployment_id: str) -> Path:
        """The folder of adapters for a deployment's model servers, which can read no other folder but this
        and their model's."""
        return self.own / deployment_id

    def of_weights(self, deployment_id: str) -> Path:
        """The folder of weights of fewer bits that were made for a deployment."""
        return self.own / f".weights-{deployment_id}"

    def is_open(self, folder: Path, *, project_id: str, model_id: str) -> bool:
        """Return whether a model of the project may be read from `folder`, which is absolute and without
        ".."."""
        parts = self._own_parts(folder)
        if parts is not None:
            return parts[:1] in ((project_id,), (model_id,)) and not any(map(_PARTIAL.fullmatch, parts))
        return any(folder.is_relative_to(each.resolve()) for each in self.opened)

    def locate(self, folder: Path, *, project_id: str, model_id: str) -> Location | None:
        """Return the location of a model, with the links of its path resolved; None where it may not be
        read."""
        real = folder.resolve()
        if not self.is_open(real, project_id=project_id, model_id=model_id):
            return None
        for each in map(Path.resolve, self.opened):
            if real.is_relative_to(each) and self._own_parts(real) is None:
                path = real.relative_to(each)
                return Location(each, "" if path == Path() else str(path))
        return Location(real)

    def locate_known(self, model: Model) -> Location:
        """Return the present location of a model that was inspected before. Raises WeightsGone."""
        folder, model_id = weights_folder(model, self), model.metadata.id
        found = self.locate(folder, project_id=model.metadata.parent_id, model_id=model_id)
        if found is None and self._is_operators(folder.resolve()):
            return Location(folder.resolve())
        if found is None:
            raise WeightsGone(f"{folder} is not a folder that this project may read models from")
        return found

    def _is_operators(self, folder: Path) -> bool:
        """Return whether an operator put the folder into the cloud's own, which older releases allowed."""
        parts = self._own_parts(folder)
        return bool(parts) and not parts[0].startswith(".") and not _ID.fullmatch(parts[0])

    def _own_parts(self, folder: Path) -> tuple[str, ...] | None:
        """Return the parts of a path below the cloud's own folder; None for a path elsewhere."""
        own = self.own.resolve()
        for each in (self.own, own):
            if folder.is_relative_to(each):
                return folder.relative_to(each).parts
        return None

    def is_copy(self, folder: Path, *, project_id: str, model_id: str) -> bool:
        """Return whether the cloud made the folder for a model, so that it is deleted with its last model."""
        if folder == self.of_model(model_id):
            return True
        home = self.of_project(project_id)
        return folder.is_relative_to(home) and folder != home


def weights_folder(model: Model, folders: ModelFolders) -> Path:
    """Return the path of a model's weights on this machine."""
    source = model.spec.source
    return Path(source.folder) if source.folder else folders.of_model(model.metadata.id)


def weight_names(folder: Folder) -> tuple[str, ...]:
    """Return the files that hold a model's or an adapter's tensors, from the folder's index if it has one.

    Raises OSError; ValueError for an invalid index.
    """
    names = folder.names()
    if ADAPTER_WEIGHTS in names and "config.json" not in names:
        return (ADAPTER_WEIGHTS,)
    if not folder.has_file(WEIGHTS_INDEX, inner_links=True):
        return tuple(name for name in names if name.endswith(".safetensors"))
    try:
        index: Mapping[str, Mapping[str, object]] = json.loads(folder.read(WEIGHTS_INDEX, inner_links=True))
        parts = set(index["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{WEIGHTS_INDEX} is not a valid index of weights") from error
    inner = [part for part in parts if isinstance(part, str) and "/" not in part]
    if len(inner) != len(parts):
        raise ValueError(f"{WEIGHTS_INDEX} is not a valid index: it names files outside of the folder")
    return tuple(sorted(inner))


def read_tokenizer_files(location: Location) -> dict[str, bytes]:
    """Return the files of a model's tokenizer, by name. Raises OSError, also where they are too large."""
    files = dict[str, bytes]()
    with location.folder() as folder:
        for name in TOKENIZER_FILES:
            if folder.has_file(name, inner_links=True):
                room = LARGEST_TOKENIZER_BYTES - sum(map(len, files.values()))
                files[name] = folder.read(name, limit=room, inner_links=True)
    if not files:
        raise FileNotFoundError("there is none in its folder")
    return files


def weights_digest(folder: Folder) -> str:
    """Return the `status.digest` of a model with these weights. Raises OSError; ValueError."""
    return content_digest(folder, weight_names(folder))


def check_weights(folder: Folder, status: ModelStatus) -> None:
    """Raise WeightsGone unless these are the weights that the model's status describes. Raises OSError."""
    try:
        found = weights_digest(folder)
    except ValueError as error:
        raise WeightsGone(str(error)) from error
    if status.digest and found != status.digest:
        raise WeightsGone(
            "its weights are not those that were inspected when it was added: their digest changed."
            " Restore them, or add them as another model"
        )
