"""What to make of an engine that ended: why, in one line, and when to try again. Pure."""

import re
from dataclasses import dataclass
from datetime import timedelta

FIRST_PAUSE_SECONDS = 5
LONGEST_PAUSE_SECONDS = 300
GIVE_UP_AFTER = 3
"""So many starts in a row without an answer, and the deployment is ERROR. It is tried again all the same."""

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
    """`message` is what the engine of pods says of the end, `log` the last lines that were written."""
    lines = [_VERBOSE.sub("", line).strip() for line in log.splitlines()]
    memory = next((line for line in reversed(lines) if _MEMORY.search(line)), "")
    errors = [
        line for line in lines if _ERROR.search(line) and "Engine core initialization failed" not in line
    ]
    cause = memory or (errors[-1] if errors else "") or next((line for line in reversed(lines) if line), "")
    was_killed = bool(_KILLED.search(message)) and not errors
    if not cause and was_killed:
        cause = "it was killed, as happens when it takes more memory than its limit"
    return Ending(bool(memory), f"the engine ended: {(cause or message or 'it said nothing')[:400]}")


def pause(failures: int) -> timedelta:
    """Nothing after an engine that had answered; then 5 s, doubling, at most 5 minutes."""
    if not failures:
        return timedelta(0)
    return timedelta(seconds=min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (failures - 1)))
