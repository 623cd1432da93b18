"""The resources of slurm: kind names, id prefixes, states, error reasons, names of secrets. Pure."""

from enum import StrEnum

from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

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


USABLE_STATES = frozenset({State.READY, State.UPDATING})
"""A cluster takes jobs in these states."""


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
    """Return the engine namespace of a cluster; its id is unique and a legal DNS label."""
    return cluster_id


def worker_names(spec: ClusterSpec) -> dict[str, str]:
    """Return the node set of every desired worker, by the name of the worker, in order."""
    return {
        f"{node_set.name}-{index}": node_set.name
        for node_set in spec.node_sets
        for index in range(node_set.count)
    }
