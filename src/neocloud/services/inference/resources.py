"""Nouns of inference: models, deployments, budgets; their states, and the names other parts may rely on.

Pure lookups only: where weights lie, what a model is called by clients, which claims keep names apart.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

from neocloud.core import contract

Model = contract.message("neocloud.inference.v1.Model")
ModelSpec = contract.message("neocloud.inference.v1.ModelSpec")
ModelStatus = contract.message("neocloud.inference.v1.ModelStatus")
Deployment = contract.message("neocloud.inference.v1.Deployment")
DeploymentSpec = contract.message("neocloud.inference.v1.DeploymentSpec")
DeploymentStatus = contract.message("neocloud.inference.v1.DeploymentStatus")
Replica = contract.message("neocloud.inference.v1.Replica")
Budget = contract.message("neocloud.inference.v1.Budget")
BudgetSpec = contract.message("neocloud.inference.v1.BudgetSpec")
Place = contract.message("neocloud.inference.v1.Place")
PlaceSpec = contract.message("neocloud.inference.v1.PlaceSpec")

MODEL = "neocloud.inference.v1.Model"
MODEL_ID_PREFIX = "inferencemodel"
DEPLOYMENT = "neocloud.inference.v1.Deployment"
DEPLOYMENT_ID_PREFIX = "inferencedeployment"
BUDGET = "neocloud.inference.v1.Budget"
BUDGET_ID_PREFIX = "inferencebudget"
PLACE = "neocloud.inference.v1.Place"
PLACE_ID_PREFIX = "inferenceplace"
PLACE_HELD = "HELD"
PLACE_STOPPED = "STOPPED"
PROJECT = "nebius.iam.v1.Container"

_OWNED = re.compile(r"(project|inferencemodel|inferencedeployment)-e00")
"""Folders in the cloud's own that are of one project, model or deployment alone."""

FAST_SUFFIX = "-fast"
ENGINE_PORT = 8000
"""Where an engine in a pod listens."""
ENGINE_KEY = "engine.key"
"""The secret of a deployment in the store: bearer token of its replicas. Only the gateway gets to know it."""

MODEL_FOLDERS = "inference.modelFolders"
"""Key in Dependencies.extras: a ModelFolders, where weights may lie on this machine."""


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


def names_space(tenant_id: str) -> str:
    """Claims of the names that clients call, each by its model."""
    return f"inference.names/{tenant_id}"


def flavours_space(model_id: str) -> str:
    """Claims of a model's flavours, each by the deployment that serves it."""
    return f"inference.flavours/{model_id}"


def users_space(model_id: str) -> str:
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


class ModelFolders:
    """Where weights may lie: what the operator opened, and the cloud's own folder, `<home>/models`.

    In the cloud's own folder a sub-folder called by the id of a project or a model is of that one alone.
    """

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
        if folder.is_relative_to(self.own):
            parts = folder.relative_to(self.own).parts
            return bool(parts) and (parts[0] in (project_id, model_id) or not _OWNED.match(parts[0]))
        return any(folder.is_relative_to(each) for each in self.opened)

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
