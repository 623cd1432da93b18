"""Which nouns this brick has, their states, and the names other parts may rely on."""

from enum import StrEnum
from typing import Any

from neocloud.core import contract

Cluster = contract.message("neocloud.slurm.v1.Cluster")
ClusterSpec = contract.message("neocloud.slurm.v1.ClusterSpec")
ClusterStatus = contract.message("neocloud.slurm.v1.ClusterStatus")

CLUSTER = "neocloud.slurm.v1.Cluster"
CLUSTER_ID_PREFIX = "slurmcluster"

DEFAULT_SHARED_ROOT_GIB = 64
SHARED_ROOT_IMAGE = "jail"


class State(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    UPDATING = "UPDATING"
    STOPPED = "STOPPED"
    DELETING = "DELETING"
    ERROR = "ERROR"


class ConditionType(StrEnum):
    READY = "Ready"
    NODES_AVAILABLE = "NodesAvailable"


class Reason(StrEnum):
    """Why a cluster is in ERROR; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"
    IMAGE_MISSING = "ImageMissing"
    SLURM_REFUSED = "SlurmRefused"
    SUBNET_GONE = "SubnetGone"
    FILESYSTEM_FAILED = "FilesystemFailed"


class Secret(StrEnum):
    """Names of a cluster's secrets in the store."""

    SLURM_KEY = "slurm.key"
    JWT_KEY = "jwt.key"
    DATABASE_PASSWORD = "database.password"
    SSH_HOST_KEY = "ssh_host_ed25519_key"


def namespace(cluster_id: str) -> str:
    """The engine namespace of a cluster; its id is unique and a legal DNS label."""
    return cluster_id


def worker_names(spec: Any) -> dict[str, str]:
    """Every worker the spec asks for, in order: node name to node set name."""
    return {
        f"{node_set.name}-{index}": node_set.name
        for node_set in spec.node_sets
        for index in range(node_set.count)
    }
