"""Endpoint and Job: container images that are run for somebody. Names, states and reasons. Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from neocloud.messages.nebius.ai.v1 import EndpointStatus, JobSpec, JobStatus

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
        """Return their names; None where any will do, since nothing really runs."""
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
"""A job in one of these runs again only when somebody restarts it."""


class Reason(StrEnum):
    """Why it does not run; stable, for programs. Also the codes of `state_details`."""

    SUBNET_GONE = "SubnetGone"
    FILESYSTEM_FAILED = "FilesystemFailed"
    PATH_REFUSED = "PathRefused"
    """The source_path of a volume leads over a link, or to something that is no folder or file."""
    EXITED = "Exited"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    STARTED_ANEW = "StartedAnew"


def namespace(resource_id: str) -> str:
    return resource_id


def subnet_group_name(resource_id: str) -> str:
    """Of the security group that lets callers reach its ports."""
    return f"{resource_id}-ports"
