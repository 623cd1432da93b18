"""Why a model server ended, when to start it again, and when to report that it fails. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from neocloud.core.reconcile.reconciler import Failed
from neocloud.messages.neocloud.inference.v1 import Replica
from neocloud.services.inference.types import DeploymentReason

FIRST_PAUSE_SECONDS = 5
LONGEST_PAUSE_SECONDS = 300
GIVE_UP_AFTER = 3
"""After this many failed starts in a row the deployment is in ERROR. Its replicas are still retried."""

_MEMORY = re.compile(
    r"out of memory|OutOfMemory|Cannot allocate memory|No available memory for the cache|"
    r"larger than the available KV cache|std::bad_alloc|Free memory on device",
    re.IGNORECASE,
)
_ERROR = re.compile(r"\b\w*(Error|Exception)\b: .+")
_VERBOSE = re.compile(r"^(\(\S+( pid=\d+)?\) )?(ERROR|INFO|WARNING) [\d-]+ [\d:]+ \[[^]]*\] ?")
_KILLED = re.compile(r"\b137\b")


@dataclass(frozen=True)
class Ending:
    is_memory: bool
    text: str


def explain(message: str, log: str) -> Ending:
    """Return the cause, given the message of the backend and the last lines of the model server's log."""
    lines = [_VERBOSE.sub("", line).strip() for line in log.splitlines()]
    memory = next((line for line in reversed(lines) if _MEMORY.search(line)), "")
    errors = [
        line for line in lines if _ERROR.search(line) and "Engine core initialization failed" not in line
    ]
    cause = memory or (errors[-1] if errors else "") or next((line for line in reversed(lines) if line), "")
    was_killed = bool(_KILLED.search(message)) and not errors
    if not cause and was_killed:
        cause = "it was killed, as happens when it takes more memory than its limit"
    return Ending(bool(memory), f"the model server ended: {(cause or message or 'it wrote no log')[:400]}")


def pause(failures: int) -> timedelta:
    """Return the pause before the next start: none after an answer, else 5 s, doubling up to 5 minutes."""
    if not failures:
        return timedelta(0)
    return timedelta(seconds=min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (failures - 1)))


def check_failures(records: Iterable[Replica]) -> None:
    """Raise Failed when a replica has ended too often before it answered."""
    for record in records:
        if record.failures >= GIVE_UP_AFTER:
            is_memory = explain("", record.message).is_memory
            reason = DeploymentReason.SERVER_OUT_OF_MEMORY if is_memory else DeploymentReason.SERVER_FAILED
            raise Failed(reason, _failure_message(record, is_memory=is_memory))


def _failure_message(record: Replica, *, is_memory: bool) -> str:
    advice = (
        "Choose a larger preset, or a smaller context_length or max_concurrency."
        if is_memory
        else "Read its log with: neo deployment logs"
    )
    return f"{record.name} ended {record.failures} times before it answered: {record.message}. {advice}"
