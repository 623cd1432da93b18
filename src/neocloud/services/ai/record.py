"""What is known of a workload that neither its spec nor the engine says, kept beside it.

The contract's specs have no field for "stop": what somebody asked for last is here, and which attempt runs.
"""

import json
from dataclasses import asdict, dataclass

from neocloud.core.store.protocol import Transaction

_NAME = "workload"


@dataclass(frozen=True)
class Record:
    is_stopped: bool = False
    """Asked to stop, or to be cancelled."""
    attempt: int = 1
    attempts_left: int = 0
    """Of a job, after this one."""
    round: int = 1
    """Counts restarts: a pod of an earlier round is replaced."""
    started_at: float = 0.0
    """Seconds since 1970; 0 before it first ran in this round."""
    finished_at: float = 0.0
    outcome: str = ""
    """The state that a job ended in; "" until then."""
    code: str = ""
    message: str = ""


def read_record(tx: Transaction, resource_id: str) -> Record | None:
    raw = tx.secret(resource_id, _NAME)
    return Record(**json.loads(raw)) if raw else None


def write_record(tx: Transaction, resource_id: str, record: Record) -> None:
    tx.put_secret(resource_id, _NAME, json.dumps(asdict(record)).encode())
