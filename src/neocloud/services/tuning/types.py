"""Kind name, id prefix, states and error reasons of jobs, the names made from a job's id, its runtime
state, and the interface to uploaded files. Pure.

The runtime state is what neither a job's spec nor its folder holds, stored beside the job. The record of a
training is stored beside the job, and beside the model that it made. Files were
uploaded to the gateway; the composition provides the implementation of their interface.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobStatus, SeenFile, TrainingRecord
from neocloud.services.slurm.types import Submission

StateEnum = FineTuningJobStatus.State

JOB = "neocloud.tuning.v1.FineTuningJob"
JOB_ID_PREFIX = "finetuningjob"
SHORT_ID_LENGTH = 8

RESULT_PURPOSE = "fine-tune-results"


class JobState(StrEnum):
    VALIDATING_FILES = "VALIDATING_FILES"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DELETING = "DELETING"


WORKING = frozenset({JobState.VALIDATING_FILES, JobState.QUEUED, JobState.RUNNING})
"""The states in which a job holds capacity of the machine."""


class Reason(StrEnum):
    """Why a job cannot continue, as `status.error.code`; stable, for programs."""

    FILE_MISSING = "file_missing"
    FILE_FORBIDDEN = "file_forbidden"
    FILE_TOO_LARGE = "file_too_large"
    FILE_DAMAGED = "file_damaged"
    INVALID_TRAINING_FILE = "invalid_training_file"
    INVALID_VALIDATION_FILE = "invalid_validation_file"
    MODEL_GONE = "model_gone"
    CLUSTER_UNUSABLE = "cluster_unusable"
    JOB_REFUSED = "job_refused"
    WORKER_LOST = "worker_lost"
    TRAINING_FAILED = "training_failed"
    BAD_RESULT = "bad_result"
    OUTPUT_MISSING = "output_missing"
    OUTPUT_FORBIDDEN = "output_forbidden"
    OUTPUT_FULL = "output_full"


INVALID_FILE = {
    "training_file": Reason.INVALID_TRAINING_FILE,
    "validation_file": Reason.INVALID_VALIDATION_FILE,
}
OUTPUT_REASONS = frozenset({Reason.OUTPUT_MISSING, Reason.OUTPUT_FORBIDDEN, Reason.OUTPUT_FULL})
"""The new model exists, and only its copy in a bucket is missing."""


def namespace(job_id: str) -> str:
    """Return the engine namespace of a job; its id is unique and a legal DNS label."""
    return job_id


def work_folder(home: Path, job_id: str) -> Path:
    """Return the folder that holds data, checkpoints, log and results of one job."""
    return home / "tuning" / job_id


def model_name(base: str, suffix: str, job_id: str) -> str:
    """Return the name of the new model, such as "assistant:ft-support-1a2b3c4d"."""
    short_id = job_id[-SHORT_ID_LENGTH:]
    return f"{base}:{'-'.join(part for part in ('ft', suffix, short_id) if part)}"


def result_file_id(job_id: str, name: str) -> str:
    """Return the id of a result file. It is the same each time, so that the file is added only once."""
    return "file-" + hashlib.sha256(f"{job_id}/{name}".encode()).hexdigest()[:24]


_SECRET_NAME = "tuning"
_DESIRED, _ATTEMPT, _LOST, _LOST_STEP, _SLURM_JOBS = "wish", "attempt", "lost", "lost_step", "slurm_jobs"
_SAVED_STEP, _SUBMISSIONS = "saved_step", "submissions"


class Desired(StrEnum):
    """The last request of Create, Pause, Resume or Cancel."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True)
class RuntimeState:
    desired: Desired = Desired.RUN
    attempt: int = 1
    """The number of this start of the training. An outcome of an earlier attempt in the folder is ignored."""
    lost: int = 0
    """How many attempts in a row ended without an outcome and without progress."""
    lost_step: int = 0
    """The step that the last of these reached."""
    submissions: tuple[tuple[int, Submission], ...] | None = None
    """The Slurm jobs that may not have ended, each with its attempt. None: nothing was submitted, or by an
    earlier release alone."""
    earlier_slurm_jobs: tuple[int, ...] = ()
    """The numbers that an earlier release stored of this attempt's Slurm jobs."""
    saved_step: int = 0
    """The step of the last checkpoint that was written to a bucket."""

    @property
    def submission(self) -> Submission | None:
        """The newest one of this attempt."""
        found = [each for attempt, each in self.submissions or () if attempt == self.attempt]
        return found[-1] if found else None


def read_runtime_state(tx: Transaction, job_id: str) -> RuntimeState:
    raw = tx.secret(job_id, _SECRET_NAME)
    if raw is None:
        return RuntimeState()
    content = json.loads(raw)
    return RuntimeState(
        desired=Desired(content[_DESIRED]),
        attempt=content[_ATTEMPT],
        lost=content[_LOST],
        lost_step=content[_LOST_STEP],
        submissions=_submissions(content.get(_SUBMISSIONS)),
        earlier_slurm_jobs=tuple(content.get(_SLURM_JOBS, ())),
        saved_step=content.get(_SAVED_STEP, 0),
    )


def _submissions(rows: list[tuple[int, str, int]] | None) -> tuple[tuple[int, Submission], ...] | None:
    if rows is None:
        return None
    return tuple((attempt, Submission(token, number)) for attempt, token, number in rows)


def write_runtime_state(tx: Transaction, job_id: str, state: RuntimeState) -> None:
    content: dict[str, object] = {
        _DESIRED: state.desired,
        _ATTEMPT: state.attempt,
        _LOST: state.lost,
        _LOST_STEP: state.lost_step,
        _SLURM_JOBS: state.earlier_slurm_jobs,
        _SAVED_STEP: state.saved_step,
    }
    if state.submissions is not None:
        content[_SUBMISSIONS] = [[attempt, each.token, each.job_id] for attempt, each in state.submissions]
    tx.put_secret(job_id, _SECRET_NAME, json.dumps(content).encode())


_RECORD_NAME = "lineage"


def read_record(tx: Transaction, resource_id: str) -> TrainingRecord | None:
    """Return the record that is kept with a job or a model."""
    raw = tx.secret(resource_id, _RECORD_NAME)
    return None if raw is None else TrainingRecord.FromString(raw)


def write_record(tx: Transaction, resource_id: str, record: TrainingRecord) -> None:
    tx.put_secret(resource_id, _RECORD_NAME, record.SerializeToString(deterministic=True))


def seen_files(record: TrainingRecord) -> Sequence[SeenFile]:
    """Return the files that a model was trained on or chosen by, and those that its base had seen."""
    spec, found = record.spec, list[SeenFile]()
    for name, digest in (
        (spec.training_file, record.training_data),
        (spec.validation_file, record.validation_data),
    ):
        if name:
            found.append(SeenFile(file=name, sha256=digest.sha256))
    return [*found, *record.base_files]


class Files(Protocol):
    """The files of projects. All calls block while the disk works."""

    def path(self, project_id: str, file_id: str) -> Path:
        """Return the path to read the file from. Raises LookupError when the project has no such file."""
        ...

    def add(self, project_id: str, path: Path, purpose: str, name: str, file_id: str = "") -> str:
        """Store a copy and return its id; do nothing when a file of this id exists."""
        ...
