"""Why a model server ended, in one line, and when to start it again. Pure."""

import re
from dataclasses import dataclass
from datetime import timedelta

FIRST_PAUSE_SECONDS = 5
LONGEST_PAUSE_SECONDS = 300
GIVE_UP_AFTER = 3
"""After so many starts in a row without an answer the deployment is in ERROR. It is retried all the same."""

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
    """Return the cause; `message` is from the backend, `log` the last lines that the model server wrote."""
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
    """Return the pause before the next start: none if it had answered, else 5 s, doubling up to 5 minutes."""
    if not failures:
        return timedelta(0)
    return timedelta(seconds=min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (failures - 1)))
