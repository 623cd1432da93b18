"""The runtime state of a job: what neither its spec nor its folder holds, stored beside the job."""

import json
from dataclasses import dataclass
from enum import StrEnum

from neocloud.core.store.protocol import Transaction

_SECRET_NAME = "tuning"
_DESIRED, _ATTEMPT, _LOST, _LOST_STEP, _SLURM_JOBS = "wish", "attempt", "lost", "lost_step", "slurm_jobs"


class Desired(StrEnum):
    """What the last call of Create, Pause, Resume or Cancel requested."""

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
    slurm_jobs: tuple[int, ...] = ()
    """The Slurm jobs of this attempt, in order."""


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
        slurm_jobs=tuple(content[_SLURM_JOBS]),
    )


def write_runtime_state(tx: Transaction, job_id: str, state: RuntimeState) -> None:
    content = {
        _DESIRED: state.desired,
        _ATTEMPT: state.attempt,
        _LOST: state.lost,
        _LOST_STEP: state.lost_step,
        _SLURM_JOBS: state.slurm_jobs,
    }
    tx.put_secret(job_id, _SECRET_NAME, json.dumps(content).encode())
