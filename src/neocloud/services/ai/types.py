"""The resources of ai, endpoints and jobs: kind names, id prefixes, states, error reasons. Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from neocloud.messages.nebius.ai.v1 import Endpoint, EndpointSpec, EndpointStatus, Job, JobSpec, JobStatus

Workload = Endpoint | Job
WorkloadSpec = EndpointSpec | JobSpec

ENDPOINT = "nebius.ai.v1.Endpoint"
ENDPOINT_ID_PREFIX = "aiendpoint"
EndpointStateEnum = EndpointStatus.State

JOB = "nebius.ai.v1.Job"
JOB_ID_PREFIX = "aijob"
JobStateEnum = JobStatus.State

ReadWrite = JobSpec.VolumeMount.Mode

CONTAINER = "main"
POD = "main"


class KnownImages(Protocol):
    """The container images that this machine has."""

    def __call__(self) -> Sequence[str] | None:
        """Return their names; None in the emulator, which accepts any name."""
        ...


class EndpointState(StrEnum):
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DELETING = "DELETING"
    ERROR = "ERROR"


class JobState(StrEnum):
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    DELETING = "DELETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    ERROR = "ERROR"


ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.ERROR})
"""A job in one of these states runs again only after a restart."""


class Reason(StrEnum):
    """Why a workload does not run; stable, for programs. Also the codes of `state_details`."""

    SUBNET_GONE = "SubnetGone"
    FILESYSTEM_FAILED = "FilesystemFailed"
    PATH_REFUSED = "PathRefused"
    """The source_path of a volume leads over a link, or to something other than a folder or file."""
    EXITED = "Exited"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    RESTARTED = "StartedAnew"


def namespace(resource_id: str) -> str:
    return resource_id


def subnet_group_name(resource_id: str) -> str:
    """Return the name of the security group that opens the workload's ports."""
    return f"{resource_id}-ports"
