"""Checks files of lines: small ones in a thread, large ones in a process of their own, so that nobody's
answers wait.

    python -m neocloud.gateway.objects.checking batch PATH '{"endpoint": ...}'

prints the findings. It writes nothing and needs nothing but the file.
"""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.objects.batch_lines import check_batch
from neocloud.gateway.objects.findings import Findings
from neocloud.gateway.objects.training_lines import check_training

CHECKS: dict[str, Callable[..., Findings]] = {"batch": check_batch, "training": check_training}
SMALL_BYTES = 256 << 10
MAX_PROCESSES = 2
MAX_WAITING = 16
"""Checks that callers wait for, beside those that run."""
AGAIN_SECONDS = 10
MEMORY_BYTES = 2 << 30
CPU_SECONDS = 1800
"""Five gigabytes of lines take some three minutes."""
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 32,
    resource.RLIMIT_CORE: 0,
}
"""Resource limits of one checker process, which reads one file and writes to a pipe."""


class CheckFailed(Exception):
    """The checker itself ended badly; says nothing of the file."""


async def check(kind: str, path: Path, **options: Any) -> Findings:
    """Raises CheckFailed, or OSError where the file is gone."""
    if (await asyncio.to_thread(path.stat)).st_size <= SMALL_BYTES:
        return await asyncio.to_thread(CHECKS[kind], path, **options)
    async with _TURNS:
        return await _check_apart(kind, path, options)


def require_turn() -> None:
    """For checks that a caller waits for. Raises OpenAiError 429 where too many wait already."""
    if _TURNS.waiting >= MAX_WAITING:
        raise OpenAiError(
            429,
            "Too many files are being validated at the moment. Try again later.",
            type="requests",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(AGAIN_SECONDS)},
        )


class _Turns:
    """A semaphore that knows how many wait for it."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self.waiting = 0

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


_TURNS = _Turns(MAX_PROCESSES)


async def _check_apart(kind: str, path: Path, options: Mapping[str, Any]) -> Findings:
    words = [sys.executable, "-m", __name__, kind, str(path), json.dumps(options)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        found, complaint = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise CheckFailed(f"the check of {path.name} ended with {process.returncode}: {complaint[-500:]!r}")
    return Findings.from_json(found)


def main(words: list[str]) -> None:
    os.nice(10)  # answers to others go first
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))
    kind, path, options = words
    sys.stdout.write(CHECKS[kind](Path(path), **json.loads(options)).to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
