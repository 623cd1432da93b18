"""Which nouns this brick has, their states, and the names other parts may rely on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

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
"""In which a cluster takes jobs."""


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


SHOWN_PATH = "/opt/neocloud/models"
"""Where jobs see what other bricks lay into `shown_folder`, read-only."""
SHOWN_FEATURE = "models"
"""Slurm's feature of workers that have it: those whose pods were made since there is such a thing. A job that
needs it says `--constraint=models`."""


def shown_folder(home: Path, cluster_id: str) -> Path:
    """On this machine, beside the weights: they are laid there without a copy. It goes with the cluster."""
    return home / "models" / cluster_id


@dataclass(frozen=True)
class NewJob:
    """What another brick has a cluster run. Nothing of it becomes part of a shell's text."""

    name: str
    script: str
    options: Sequence[str] = ()
    """Of sbatch: "--cpus-per-task=2"."""
    arguments: Sequence[str] = ()
    """Of the script."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchJob:
    id: int
    name: str
    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, ..."""
    has_ended: bool
    reason: str = ""
    node: str = ""
    address: str = ""
    """Of the node's pod, while the job runs on one."""
    started_at: datetime | None = None
    exit_code: int = 0
    output_path: str = ""


@dataclass(frozen=True)
class CommandResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


class JobRefused(Exception):
    """Slurm does not take the job; the message is its own."""


class ClusterUnreachable(Exception):
    """The cluster is not ready or does not answer; a later try may succeed."""


class BatchJobs(Protocol):
    """Jobs of clusters, for other bricks. Who may use a cluster is theirs to check before."""

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        """Its number. Raises JobRefused or ClusterUnreachable."""
        ...

    async def jobs(self, cluster_id: str) -> Sequence[BatchJob]:
        """Those that wait or run, and those that ended minutes ago, oldest first."""
        ...

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        """May be repeated; nothing happens to one that has ended or that Slurm has forgotten."""
        ...

    async def tail(self, cluster_id: str, path: str, lines: int) -> str:
        """The end of a file on the shared root; "" when there is none."""
        ...

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = 2**20
    ) -> CommandResult:
        """On the login node, as root, with the shared root as "/". For what takes seconds. Raises
        ClusterUnreachable, also when it prints more than `max_output_bytes`."""
        ...
