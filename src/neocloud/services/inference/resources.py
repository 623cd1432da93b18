"""Nouns of inference: models, deployments, budgets; their states, and the names other parts may rely on.

Lookups only: where weights lie, what a model is called by clients, which claims keep names apart.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from neocloud.core.untrusted_files import Folder
from neocloud.core.untrusted_trees import content_digest
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec

MODEL = "neocloud.inference.v1.Model"
MODEL_ID_PREFIX = "inferencemodel"
DEPLOYMENT = "neocloud.inference.v1.Deployment"
DEPLOYMENT_ID_PREFIX = "inferencedeployment"
BUDGET = "neocloud.inference.v1.Budget"
BUDGET_ID_PREFIX = "inferencebudget"
REPLICA_RESERVATION = "neocloud.inference.v1.Place"
RESERVATION_ID_PREFIX = "inferenceplace"
RESERVATION_HELD = "HELD"
RESERVATION_STOPPED = "STOPPED"
PROJECT = "nebius.iam.v1.Container"

_ID = re.compile(r"[a-z0-9]+-e00[a-z0-9]*")
"""Id of a resource. Folders that the cloud makes among the models have such names, or begin with a dot."""
_PARTIAL = re.compile(r"\..*\.partial")
"""A folder that is still being filled."""

WEIGHTS_INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODULE_NAME = re.compile(r"[A-Za-z0-9_]+")
"""Name of a layer that is safe in an engine's command line: it cannot be taken for an option."""

FAST_SUFFIX = "-fast"
SERVER_PORT = 8000
"""Where an engine in a pod listens."""
SERVER_KEY = "engine.key"
"""The secret of a deployment in the store: bearer token of its replicas. Only the gateway gets to know it."""


class MonthlySpending(Protocol):
    def __call__(self, project_id: str, moment: datetime, /) -> Decimal:
        """Return the US dollars spent on tokens in that moment's calendar month, UTC."""
        ...


class ModelState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    DELETING = "DELETING"
    ERROR = "ERROR"


class DeploymentState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    ASLEEP = "ASLEEP"
    STARTING = "STARTING"
    STOPPED = "STOPPED"
    DELETING = "DELETING"
    ERROR = "ERROR"


class ModelReason(StrEnum):
    """Why a model is in ERROR; stable, for programs."""

    BAD_FOLDER = "BadFolder"
    FETCH_FAILED = "FetchFailed"
    DOES_NOT_FIT_BASE = "DoesNotFitBase"


class DeploymentReason(StrEnum):
    """Why a deployment is in ERROR; stable, for programs."""

    MODEL_NOT_READY = "ModelNotReady"
    ENGINE_FAILED = "EngineFailed"
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    IMAGE_MISSING = "ImageMissing"
    CLUSTER_UNUSABLE = "ClusterUnusable"
    JOB_REFUSED = "JobRefused"


def names_namespace(tenant_id: str) -> str:
    """Claims of the names that clients call, each by its model."""
    return f"inference.names/{tenant_id}"


def flavours_namespace(model_id: str) -> str:
    """Claims of a model's flavours, each by the deployment that serves it."""
    return f"inference.flavours/{model_id}"


def users_namespace(model_id: str) -> str:
    """Claims on a model by those that need it: deployments that serve it, adapters on it."""
    return f"inference.users/{model_id}"


def is_fast(spec: Any) -> bool:
    return spec.flavour == DeploymentSpec.FAST


def embeds(spec: Any) -> bool:
    """Whether its engines answer with vectors, and chat with nobody."""
    return spec.task == DeploymentSpec.EMBED


def called_name(model_name: str, spec: Any) -> str:
    """How clients call a model that a deployment with this spec serves; the engine knows it so too."""
    return model_name + FAST_SUFFIX if is_fast(spec) else model_name


def namespace(deployment_id: str) -> str:
    """The engine namespace of a deployment; its id is unique and a legal DNS label."""
    return deployment_id


def replica_name(number: int) -> str:
    return f"replica-{number}"


class WeightsGone(ValueError):
    """A model's folder is not where models may be read from, or holds something else than was looked at."""


@dataclass(frozen=True)
class Location:
    """A folder of weights: below `root`, whose path only the operator can change, in the folder `path`.

    In between lie folders that tenants may be able to write in, so nobody may follow a link there.
    """

    root: Path
    path: str = ""

    def __str__(self) -> str:
        return str(self.root / self.path)

    def folder(self) -> Folder:
        """Raises UnsafePath, an OSError, where a link has taken the place of a folder; FileNotFoundError."""
        if not self.path:
            return Folder.open(self.root)
        with Folder.open(self.root) as root:
            return root.folder(self.path)


class ModelFolders:
    """Where weights may lie: what the operator opened, and the cloud's own folder, `<home>/models`.

    Of the cloud's own a project may read the sub-folder called by its id, and a model that called by its own.
    Everything else there is another's: copies for clusters and deployments, what is still being fetched.
    """

    reads_files = True
    """False: weights are pretended, so no file of theirs is read or laid anywhere."""

    def __init__(self, own: Path, opened: tuple[Path, ...] = ()) -> None:
        self.own = own
        self.opened = opened

    def of_model(self, model_id: str) -> Path:
        """Where the weights of a model lie that were fetched for it."""
        return self.own / model_id

    def of_project(self, project_id: str) -> Path:
        """Where copies and products of a project lie, e.g. what was trained in it."""
        return self.own / project_id

    def of_deployment(self, deployment_id: str) -> Path:
        """Where adapters are laid for a deployment's engines, which read no more of the machine than that."""
        return self.own / deployment_id

    def is_open(self, folder: Path, *, project_id: str, model_id: str) -> bool:
        """Whether a model of the project may be read from there. `folder` is absolute and without ".."."""
        parts = self._own_parts(folder)
        if parts is not None:
            return parts[:1] in ((project_id,), (model_id,)) and not any(map(_PARTIAL.fullmatch, parts))
        return any(folder.is_relative_to(each.resolve()) for each in self.opened)

    def locate(self, folder: Path, *, project_id: str, model_id: str) -> Location | None:
        """Where a model may be read from, with the links of its path followed; None where it may not."""
        real = folder.resolve()
        if not self.is_open(real, project_id=project_id, model_id=model_id):
            return None
        for each in map(Path.resolve, self.opened):
            if real.is_relative_to(each) and self._own_parts(real) is None:
                path = real.relative_to(each)
                return Location(each, "" if path == Path() else str(path))
        return Location(real)

    def locate_known(self, model: Any) -> Location:
        """Where a model that was looked at lies now. Raises WeightsGone."""
        folder, model_id = weights_folder(model, self), model.metadata.id
        found = self.locate(folder, project_id=model.metadata.parent_id, model_id=model_id)
        if found is None and self._is_operators(folder.resolve()):
            return Location(folder.resolve())
        if found is None:
            raise WeightsGone(f"{folder} is no folder that this project may read models from")
        return found

    def _is_operators(self, folder: Path) -> bool:
        """What an operator laid into the cloud's own folder: older releases took models from there."""
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
        """Whether the cloud made the folder for a model, so that it goes when its last model does."""
        if folder == self.of_model(model_id):
            return True
        home = self.of_project(project_id)
        return folder.is_relative_to(home) and folder != home


def weights_folder(model: Any, folders: ModelFolders) -> Path:
    """Where a model's weights lie on this machine."""
    source = model.spec.source
    return Path(source.folder) if source.folder else folders.of_model(model.metadata.id)


def weight_names(folder: Folder) -> tuple[str, ...]:
    """The files of the folder that hold a model's or an adapter's tensors, as its index says if it has one.

    Raises OSError; ValueError for an index that is none.
    """
    names = folder.names()
    if ADAPTER_WEIGHTS in names and "config.json" not in names:
        return (ADAPTER_WEIGHTS,)
    if not folder.has_file(WEIGHTS_INDEX, inner_links=True):
        return tuple(name for name in names if name.endswith(".safetensors"))
    try:
        index = json.loads(folder.read(WEIGHTS_INDEX, inner_links=True))
        parts = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{WEIGHTS_INDEX} is no index of weights") from error
    if not all(isinstance(part, str) and "/" not in part for part in parts):
        raise ValueError(f"{WEIGHTS_INDEX} names files outside of the folder")
    return tuple(parts)


def weights_digest(folder: Folder) -> str:
    """What `status.digest` says of a model with these weights. Raises OSError; ValueError."""
    return content_digest(folder, weight_names(folder))


def check_weights(folder: Folder, status: Any) -> None:
    """Raises WeightsGone when these are not the weights that the model's status speaks of; OSError."""
    try:
        found = weights_digest(folder)
    except ValueError as error:
        raise WeightsGone(str(error)) from error
    if status.digest and found != status.digest:
        raise WeightsGone(
            "its weights are not those that were looked at when it was added: their digest changed."
            " Put them back, or add them as another model"
        )
