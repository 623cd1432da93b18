"""Checks files of lines: small ones in a thread, large ones in a process of their own, so that nobody's
answers wait.

    python -m neocloud.gateway.objects.checking batch PATH '{"endpoint": ...}'

prints the findings. It writes nothing and needs nothing but the file.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neocloud.gateway.objects.batch_lines import check_batch
from neocloud.gateway.objects.findings import Findings
from neocloud.gateway.objects.training_lines import check_training

CHECKS: dict[str, Callable[..., Findings]] = {"batch": check_batch, "training": check_training}
SMALL_BYTES = 256 << 10


class CheckFailed(Exception):
    """The checker itself ended badly; says nothing of the file."""


async def check(kind: str, path: Path, **options: Any) -> Findings:
    """Raises CheckFailed, or OSError where the file is gone."""
    if (await asyncio.to_thread(path.stat)).st_size <= SMALL_BYTES:
        return await asyncio.to_thread(CHECKS[kind], path, **options)
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
    kind, path, options = words
    sys.stdout.write(CHECKS[kind](Path(path), **json.loads(options)).to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
