"""What is known of a job that neither its spec nor its folder says, kept beside the row.

`wish`: what was asked for last. `attempt`: how often it was started; what the folder says of an earlier
attempt does not count. `lost` and `lost_step`: how often its pod went away in a row, and how far it was.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from neocloud.core.store.protocol import Transaction

_NAME = "tuning"


class Wish(StrEnum):
    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True)
class JobRecord:
    wish: Wish = Wish.RUN
    attempt: int = 1
    lost: int = 0
    lost_step: int = 0
    slurm_jobs: tuple[int, ...] = ()
    """Of this attempt, in order."""


def read_record(tx: Transaction, job_id: str) -> JobRecord:
    raw = tx.secret(job_id, _NAME)
    if raw is None:
        return JobRecord()
    content = json.loads(raw)
    return JobRecord(**{**content, "wish": Wish(content["wish"]), "slurm_jobs": tuple(content["slurm_jobs"])})


def write_record(tx: Transaction, job_id: str, record: JobRecord) -> None:
    tx.put_secret(job_id, _NAME, json.dumps(asdict(record)).encode())
