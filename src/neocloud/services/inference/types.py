"""The resources of inference: kind names, id prefixes, states, error reasons, and names derived from them.

Pure.
"""

import re
from enum import StrEnum

from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ModelSpec

MODEL = "neocloud.inference.v1.Model"
MODEL_ID_PREFIX = "inferencemodel"
DEPLOYMENT = "neocloud.inference.v1.Deployment"
DEPLOYMENT_ID_PREFIX = "inferencedeployment"
BUDGET = "neocloud.inference.v1.Budget"
BUDGET_ID_PREFIX = "inferencebudget"
FILE_BUCKET = "neocloud.inference.v1.FileBucket"
FILE_BUCKET_ID_PREFIX = "inferencefilebucket"
FILE_FOLDER = "openai-files/"
"""The prefix, in a file bucket, of the objects of files."""
FILE_ID = re.compile(r"file-[0-9a-f]{24}")
RELEASE = "neocloud.inference.v1.Release"
RELEASE_ID_PREFIX = "inferencerelease"
ACTIVE_RELEASE = "active"
"""The reservation of a model that its active release holds."""
REPLICA_RESERVATION = "neocloud.inference.v1.ReplicaReservation"
RESERVATION_ID_PREFIX = "inferencereservation"
RESERVATION_HELD = "HELD"
RESERVATION_STOPPED = "STOPPED"
PROJECT = "nebius.iam.v1.Container"

WEIGHTS_INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODULE_NAME = re.compile(r"[A-Za-z0-9_]+")
"""The names of layers that are safe on a model server's command line: none can be taken for an option."""

FAST_SUFFIX = "-fast"
SERVER_PORT = 8000
"""The port on which a model server in a pod listens."""
SERVER_KEY = "engine.key"
"""The secret of a deployment in the store: the bearer token of its replicas, which only the gateway gets."""


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


class ReleaseState(StrEnum):
    ACTIVE = "ACTIVE"
    PROMOTED = "PROMOTED"
    ROLLED_BACK = "ROLLED_BACK"
    DELETING = "DELETING"


class ModelReason(StrEnum):
    """Why a model is in ERROR; stable, for programs."""

    BAD_FOLDER = "BadFolder"
    FETCH_FAILED = "FetchFailed"
    DOES_NOT_FIT_BASE = "DoesNotFitBase"
    WITHHELD = "Withheld"


class DeploymentReason(StrEnum):
    """Why a deployment is in ERROR; stable, for programs."""

    MODEL_NOT_READY = "ModelNotReady"
    SERVER_FAILED = "EngineFailed"
    SERVER_OUT_OF_MEMORY = "EngineOutOfMemory"
    IMAGE_MISSING = "ImageMissing"
    CLUSTER_UNUSABLE = "ClusterUnusable"
    JOB_REFUSED = "JobRefused"
    WEIGHTS_FAILED = "WeightsFailed"
    QUALITY_TOO_LOW = "QualityTooLow"


def names_namespace(tenant_id: str) -> str:
    """The reservations of names that clients call, each by its model."""
    return f"inference.names/{tenant_id}"


def flavours_namespace(model_id: str) -> str:
    """The reservations of a model's flavours, each by the deployment that serves it."""
    return f"inference.flavours/{model_id}"


def releases_namespace(model_id: str) -> str:
    """The reservation of a model by its active release."""
    return f"inference.releases/{model_id}"


def users_namespace(model_id: str) -> str:
    """The reservations of a model by its users: deployments that serve it, adapters on it."""
    return f"inference.users/{model_id}"


def is_withheld(spec: ModelSpec) -> bool:
    """Return whether the model is not served, because it failed a gate that is not overridden."""
    return bool(spec.withheld_by) and not spec.HasField("gate_override")


def is_fast(spec: DeploymentSpec) -> bool:
    return spec.flavour == DeploymentSpec.FAST


def generates(spec: DeploymentSpec) -> bool:
    """Return whether the model servers answer with text, instead of vectors or scores."""
    return spec.task == DeploymentSpec.GENERATE


def task_name(spec: DeploymentSpec) -> str:
    """Return "GENERATE", "EMBED" or "RERANK"."""
    return DeploymentSpec.Task.Name(spec.task)


def called_name(model_name: str, spec: DeploymentSpec) -> str:
    """Return the name by which clients, and the model server, call a model on a deployment with this spec."""
    return model_name + FAST_SUFFIX if is_fast(spec) else model_name


def has_fewer_bits(spec: DeploymentSpec) -> bool:
    """Return whether the model servers load weights of fewer bits than the model has."""
    return spec.weights != DeploymentSpec.ORIGINAL


def namespace(deployment_id: str) -> str:
    """The engine namespace of a deployment; its id is unique and a legal DNS label."""
    return deployment_id


def replica_name(number: int) -> str:
    return f"replica-{number}"
