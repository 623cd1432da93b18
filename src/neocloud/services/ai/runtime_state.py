"""The runtime state of a workload: what neither its spec nor the engine holds, stored beside the resource.

The contract's specs have no field for "stop", so the last request to start or stop is here, and the attempt
that runs.
"""

import json
from dataclasses import asdict, dataclass

from neocloud.core.store.protocol import Transaction

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
    outcome: str = ""
    """The state that a job ended in; "" until then."""
    code: str = ""
    message: str = ""


def read_runtime_state(tx: Transaction, resource_id: str) -> RuntimeState | None:
    raw = tx.secret(resource_id, _SECRET_NAME)
    return RuntimeState(**json.loads(raw)) if raw else None


def write_runtime_state(tx: Transaction, resource_id: str, state: RuntimeState) -> None:
    tx.put_secret(resource_id, _SECRET_NAME, json.dumps(asdict(state)).encode())
