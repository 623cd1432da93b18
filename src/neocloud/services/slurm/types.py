"""The resources of slurm: kind names, id prefixes, states, error reasons, names of secrets; and the
interfaces for other services: batch jobs on clusters, and files for them. Pure.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

CLUSTER = "neocloud.slurm.v1.Cluster"
CLUSTER_ID_PREFIX = "slurmcluster"
ELASTIC_WORKER = "neocloud.slurm.v1.ElasticWorker"
ELASTIC_WORKER_ID_PREFIX = "slurmworker"
WORKER_UP, WORKER_STOPPED = "UP", "STOPPED"
"""States of an elastic worker; the second while the cloud is stopped."""

DEFAULT_SHARED_ROOT_GIB = 64
DEFAULT_IDLE_SECONDS = 300
SHARED_ROOT_IMAGE = "jail"


def memory_of_submounts(spec: ClusterSpec) -> int:
    """Return the MiB of each worker's memory that its submounts may fill, and its jobs do not have."""
    return sum(each.size_gibibytes * 1024 for each in spec.submounts if each.in_memory)


class ClusterState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    UPDATING = "UPDATING"
    STOPPED = "STOPPED"
    DELETING = "DELETING"
    ERROR = "ERROR"


USABLE_STATES = frozenset({ClusterState.READY, ClusterState.UPDATING})
"""A cluster takes jobs in these states."""


CHARGED_STATES = frozenset({ClusterState.READY, ClusterState.UPDATING})


class ConditionType(StrEnum):
    READY = "Ready"
    NODES_AVAILABLE = "NodesAvailable"
    CONTROLLERS = "ControllersAvailable"
    """Only where there are two controllers."""
    LOGIN_ADDRESSES = "LoginAddresses"
    """Only where ssh to the login node is not open on each address; "False" then."""
    ELASTIC_WORKERS = "ElasticWorkers"
    """Only where a worker of an elastic set could not be started; "False" then."""
    GROUP_MEMBERS = "GroupMembers"
    """Only where groups have more people than a cluster may have users; "False" then."""
    STORAGE_KEYS = "StorageKeys"
    """Only where keys for object storage could not be delivered; "False" then."""


class Reason(StrEnum):
    """Why a cluster is in ERROR, or a condition of it is "False"; stable, for programs."""

    ENGINE_REFUSED = "EngineRefused"
    IMAGE_MISSING = "ImageMissing"
    SLURM_REFUSED = "SlurmRefused"
    SUBNET_GONE = "SubnetGone"
    FILESYSTEM_FAILED = "FilesystemFailed"
    NO_HOST = "NoHost"
    """Reason of the condition ElasticWorkers: all hosts are drained."""


class Secret(StrEnum):
    """Names of a cluster's secrets in the store."""

    SLURM_KEY = "slurm.key"
    JWT_KEY = "jwt.key"
    DATABASE_PASSWORD = "database.password"
    SSH_HOST_KEY = "ssh_host_ed25519_key"
    WORKER_HOST_KEY = "worker_host_ed25519_key"
    FIRST_JOB = "first.job"
    """No secret: the lowest number of a job, where accounting of another cluster was loaded."""


ADD_USER, REMOVE_USER = "add-user", "remove-user"
"""Names of the scripts that change the users of a cluster, as the login node runs them."""
DELIVER_KEYS = "deliver-keys"
"""Name of the script that writes keys for object storage."""


MAX_MEMBERS = 1000
"""People of all groups of a cluster together; the oldest accounts come first."""


@dataclass(frozen=True)
class LinuxUser:
    """A user that the cluster should have."""

    name: str
    keys: tuple[str, ...] = ()
    """Public keys that may sign in, besides those in the user's home."""
    account_id: str = ""
    """The account of a person who is a user by a group; empty for users of the spec."""


def namespace(cluster_id: str) -> str:
    """Return the engine namespace of a cluster; its id is unique and a legal DNS label."""
    return cluster_id


def worker_names(spec: ClusterSpec) -> dict[str, str]:
    """Return the node set of every worker of the spec, by the name of the worker, in order. Those of elastic
    sets need not be there."""
    return {
        f"{node_set.name}-{index}": node_set.name
        for node_set in spec.node_sets
        for index in range(node_set.count)
    }


MODELS_MOUNT_PATH = "/opt/neocloud/models"
"""The mount point of `models_folder` on workers, read-only."""
MODELS_FEATURE = "models"
"""The Slurm feature of workers that mount the folder; pods of an older release do not. A job that needs the
folder has `--constraint=models`."""


def models_folder(home: Path, cluster_id: str) -> Path:
    """Return the host folder of files for a cluster's jobs. It is on the file system of the weights, so that
    they are linked into it and not copied; it is deleted with the cluster."""
    return home / "models" / cluster_id


CONTROL_PLANE_USER, CONTROL_PLANE_USER_ID = "root", 0
"""The Linux user as whom the control plane submits jobs: root of the cluster."""
UNKNOWN_USER_ID = -1

DEFAULT_WORKING_DIRECTORY = "/home/shared"
"""Where a job runs that neither its script nor its submission gives a working directory."""


@dataclass(frozen=True)
class NewJob:
    """A job to submit. None of its texts is interpreted by a shell."""

    name: str
    """Name of the job; empty: what the script's #SBATCH lines say, else `file_name`."""
    script: str
    options: Sequence[str] = ()
    """Options of sbatch, e.g. "--cpus-per-task=2"."""
    arguments: Sequence[str] = ()
    """Arguments of the script."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    working_directory: str = ""
    """Empty: what the script's #SBATCH lines say, else `DEFAULT_WORKING_DIRECTORY`."""
    file_name: str = "job"
    """Name of the script's file on the login node, without a folder."""
    submission: str = ""
    """The token by which a service finds the job again (`Submission`)."""


@dataclass(frozen=True)
class BatchJob:
    id: int
    name: str
    state: str
    """Slurm's name: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, ..."""
    has_ended: bool
    reason: str = ""
    node: str = ""
    address: str = ""
    """Address of the node's pod, while the job runs."""
    started_at: datetime | None = None
    exit_code: int = 0
    user_id: int = UNKNOWN_USER_ID
    submission: str = ""
    """The token in its comment, which any user may copy; "" without one."""

    @property
    def is_of_control_plane(self) -> bool:
        """Return whether root of the cluster submitted it, as the control plane does."""
        return self.user_id == CONTROL_PLANE_USER_ID


@dataclass(frozen=True)
class Submission:
    """A token by which a service finds the job that it submitted.

    The name, comment and output path of a job are free text: every user of a cluster may give a job those of
    another. So a service stores a submission with a new token, submits the job with the token, and then
    stores the job's number. The job is one of the user as whom the control plane submits that has the token,
    and the number once it is stored. After a crash in between, it is found by its token; where another was
    submitted nevertheless, the later job is a repeat, to be cancelled (rfd 0072).
    """

    token: str
    """Empty for a job that an earlier release submitted."""
    job_id: int = 0
    """0 until it is known."""

    @classmethod
    def new(cls) -> "Submission":
        return cls(secrets.token_urlsafe(18))


@dataclass(frozen=True)
class FoundJob:
    job: BatchJob | None
    """None: Slurm has forgotten it, or never got it."""
    repeats: Sequence[BatchJob] = ()
    """Further jobs with its token that have not ended."""


def find_submitted(submission: Submission, jobs: Iterable[BatchJob]) -> FoundJob:
    """Return the job of a submission among the jobs of its cluster."""
    same = [job for job in jobs if job.is_of_control_plane and job.submission == submission.token]
    if submission.job_id:
        job = next((each for each in same if each.id == submission.job_id), None)
    else:
        job = min(same, key=lambda each: each.id, default=None) if submission.token else None
    rest = same if submission.token else []
    return FoundJob(job, [each for each in rest if each is not job and not each.has_ended])


def jobs_without_token(jobs: Iterable[BatchJob], belongs: Callable[[BatchJob], bool]) -> list[BatchJob]:
    """Return the jobs of the control plane that were submitted without a token, newest last; an earlier
    release found them by their names alone."""
    found = [job for job in jobs if job.is_of_control_plane and not job.submission and belongs(job)]
    return sorted(found, key=lambda job: job.id)


@dataclass(frozen=True)
class CommandResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


class JobRefused(Exception):
    """Slurm refused; the message is Slurm's own."""


class ClusterUnreachable(Exception):
    """The cluster is not ready or does not answer; a later try may succeed."""


class SubmissionUnknown(ClusterUnreachable):
    """The login node failed while it submitted a job, which may be in the queue."""


@dataclass(frozen=True)
class PrintedText:
    """A part of what a job printed; "" if there is nothing, or it cannot be read."""

    text: str = ""
    next_offset: int = 0
    """Offset of the byte after it."""


class BatchJobs(Protocol):
    """Batch jobs on clusters. Callers check permissions first."""

    async def submit(self, cluster_id: str, job: NewJob) -> int:
        """Return the id of the new job. Raises JobRefused, ClusterUnreachable, or SubmissionUnknown."""
        ...

    async def jobs(self, cluster_id: str) -> Sequence[BatchJob]:
        """Return the jobs that wait or run and those that ended minutes ago, oldest first."""
        ...

    async def cancel(self, cluster_id: str, job_id: int) -> None:
        """Cancel a job of the control plane; do nothing if it has ended, Slurm has forgotten it, or it is
        another user's."""
        ...

    async def tail(self, cluster_id: str, job_id: int, lines: int) -> PrintedText:
        """Return the last lines that a job of the control plane printed."""
        ...

    async def printed(self, cluster_id: str, job_id: int, offset: int) -> PrintedText:
        """Return the whole lines that a job of the control plane printed from an offset on; of a job that has
        ended also an unfinished one. Output that is shorter than the offset is read from its start."""
        ...

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = 2**20
    ) -> CommandResult:
        """Run a command of a few seconds on the login node, as root, with the shared root as "/". Raises
        ClusterUnreachable, also when it prints more than `max_output_bytes`."""
        ...
