"""The resources of ai, endpoints and jobs: kind names, id prefixes, states, error reasons, runtime state.
Pure.

The runtime state is what neither a workload's spec nor the engine holds, stored beside the resource: the
contract's specs have no field for "stop", so the last request to start or stop is here, and the attempt that
runs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol

from neocloud.core.store.protocol import Transaction
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
    IMAGE_MISSING = "ImageMissing"
    IMAGE_FORBIDDEN = "ImageForbidden"
    IMAGE_UNUSABLE = "ImageUnusable"
    IMAGE_TOO_LARGE = "ImageTooLarge"
    PATH_REFUSED = "PathRefused"
    """The source_path of a volume leads over a link, or to something other than a folder or file."""
    EXITED = "Exited"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    RESTARTED = "StartedAnew"


FOR_GOOD = frozenset({Reason.IMAGE_UNUSABLE, Reason.IMAGE_TOO_LARGE})
"""Why a workload is in ERROR until somebody starts it again: it holds nothing of the machine."""


def is_at_rest(state: str, reason: str) -> bool:
    """Return whether a workload in this state, whose details have this code, runs again on request alone."""
    return state in _AT_REST or (state == JobState.ERROR and reason in FOR_GOOD)


_AT_REST = frozenset({EndpointState.STOPPED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


def namespace(resource_id: str) -> str:
    return resource_id


def subnet_group_name(resource_id: str) -> str:
    """Return the name of the security group that opens the workload's ports."""
    return f"{resource_id}-ports"


_SECRET_NAME = "workload"


@dataclass(frozen=True)
class RuntimeState:
    is_stopped: bool = False
    """A stop or a cancellation was requested."""
    attempt: int = 1
    attempts_left: int = 0
    """How many more attempts a job has after this one."""
    round: int = 1
    """Counts restarts: a pod of an earlier round is replaced."""
    started_at: float = 0.0
    """Seconds since 1970; 0 until it first runs in this round."""
    finished_at: float = 0.0
    image_digest: str = ""
    """The digest that the tag of a registry's image had when this round began; "" for other images."""
    outcome: str = ""
    """The state that a job ended in; "" until then."""
    code: str = ""
    message: str = ""


def read_runtime_state(tx: Transaction, resource_id: str) -> RuntimeState | None:
    raw = tx.secret(resource_id, _SECRET_NAME)
    return RuntimeState(**json.loads(raw)) if raw else None


def write_runtime_state(tx: Transaction, resource_id: str, state: RuntimeState) -> None:
    tx.put_secret(resource_id, _SECRET_NAME, json.dumps(asdict(state)).encode())
