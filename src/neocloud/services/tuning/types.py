"""Kind name, id prefix, states and error reasons of jobs, and the names made from a job's id. Pure."""

import hashlib
from enum import StrEnum
from pathlib import Path

from neocloud.messages.neocloud.tuning.v1 import FineTuningJobStatus

StateEnum = FineTuningJobStatus.State

JOB = "neocloud.tuning.v1.FineTuningJob"
JOB_ID_PREFIX = "finetuningjob"
SHORT_ID_LENGTH = 8

RESULT_PURPOSE = "fine-tune-results"


class State(StrEnum):
    VALIDATING_FILES = "VALIDATING_FILES"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DELETING = "DELETING"


WORKING = frozenset({State.VALIDATING_FILES, State.QUEUED, State.RUNNING})
"""The states in which a job holds capacity of the machine."""


class Reason(StrEnum):
    """Why a job cannot continue, as `status.error.code`; stable, for programs."""

    FILE_MISSING = "file_missing"
    MODEL_GONE = "model_gone"
    CLUSTER_UNUSABLE = "cluster_unusable"
    JOB_REFUSED = "job_refused"
    WORKER_LOST = "worker_lost"
    TRAINING_FAILED = "training_failed"
    BAD_RESULT = "bad_result"


def namespace(job_id: str) -> str:
    """Return the engine namespace of a job; its id is unique and a legal DNS label."""
    return job_id


def work_folder(home: Path, job_id: str) -> Path:
    """Return the folder that holds data, checkpoints, log and results of one job."""
    return home / "tuning" / job_id


def model_name(base: str, suffix: str, job_id: str) -> str:
    """Return the name of the new model, such as "bank:ft-support-1a2b3c4d"."""
    short_id = job_id[-SHORT_ID_LENGTH:]
    return f"{base}:{'-'.join(part for part in ('ft', suffix, short_id) if part)}"


def result_file_id(job_id: str, name: str) -> str:
    """Return the id of a result file. It is the same each time, so that the file is added only once."""
    return "file-" + hashlib.sha256(f"{job_id}/{name}".encode()).hexdigest()[:24]
