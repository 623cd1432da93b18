"""Check data to train on, with the reader that jobs use, in a process of its own that reads nothing but them.

`python -m neocloud.core.training_data PATH` limits itself, then becomes the reader: a script of the recipes,
which knows nothing of the cloud.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import neocloud

_PACKAGE = Path(neocloud.__file__).parent
SUPERVISED, REINFORCEMENT = "supervised", "reinforcement"
MEMORY_BYTES = 2 << 30
CPU_SECONDS = 1800
MOST_SECONDS = 3600.0
"""Limit by the clock: on a busy machine the processor time takes longer, and a read that hangs takes none."""
MOST_OUTPUT_BYTES = 1 << 20
"""Limit of a report. It contains text of the data, which the caller wrote."""
LONGEST_TEXT = 1_000
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 32,
    resource.RLIMIT_CORE: 0,
}
"""Resource limits of the process, which writes to a pipe alone."""


@dataclass(frozen=True)
class DataReport:
    conversations: int
    errors: tuple[str, ...] = ()
    """The first few, each with its line and column."""
    error_count: int = 0
    notes: tuple[str, ...] = ()
    """Notes on data without errors: the parts that are used, and those that are not."""

    @property
    def reason(self) -> str:
        """Return the errors as sentences; "" for none."""
        more = f" ({self.error_count} errors in total.)" if self.error_count > len(self.errors) else ""
        return " ".join(map(as_sentence, self.errors)) + more


def as_sentence(error: str) -> str:
    return f"{error[:1].upper()}{error[1:].rstrip('.')}."


class CheckFailed(Exception):
    """The process failed, which says nothing about the data: they may need more memory or time."""


def recipes_folder() -> Path:
    """Return the folder of the recipes: inside an installed package, or beside `src` in a checkout.

    Raises FileNotFoundError.
    """
    for candidate in (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes"):
        if (candidate / "tuning_job.py").is_file():
            return candidate
    raise FileNotFoundError(
        f"No recipes in {_PACKAGE} or beside it. Install the package again, or run from a checkout."
    )


async def check_training_data(file: BinaryIO, method: str = SUPERVISED, grader: str = "") -> DataReport:
    """Read JSONL from an open file, for a method and the fields that a grader reads. Raises CheckFailed."""
    pipe, descriptor = asyncio.subprocess.PIPE, file.fileno()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, f"/dev/fd/{descriptor}", method),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        pass_fds=(descriptor,),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await _written(process.stdin, grader.encode())
            output, errors = await asyncio.gather(_some_of(process.stdout), _some_of(process.stderr))
            if max(len(output), len(errors)) > MOST_OUTPUT_BYTES:
                raise CheckFailed("the check said too much")
            await process.wait()
    except TimeoutError:
        raise CheckFailed(f"the check did not end within {MOST_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CheckFailed(f"the check ended with {process.returncode}: {errors[-500:]!r}")
    found = json.loads(output)
    return DataReport(
        found["conversations"], _short(found["errors"]), found["error_count"], _short(found["notes"])
    )


async def _written(stream: asyncio.StreamWriter, content: bytes) -> None:
    """Write the whole content; a process that has ended does not read it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(content)
        await stream.drain()
    stream.close()


async def _some_of(stream: asyncio.StreamReader) -> bytes:
    """Return what comes until its end, or a little more than a report may have."""
    content = b""
    while len(content) <= MOST_OUTPUT_BYTES and (piece := await stream.read(65536)):
        content += piece
    return content


def _short(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..." for text in texts)


def limit_this_process() -> None:
    os.nice(10)  # requests go first
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))


def main(path: str, method: str = SUPERVISED) -> None:
    limit_this_process()
    script = recipes_folder() / "dataset_convert.py"
    options = ["--format", "jsonl", "--check", "--method", method]
    options += ["--grader", "/dev/stdin"] if method == REINFORCEMENT else []
    os.execv(sys.executable, [sys.executable, str(script), path, *options])


if __name__ == "__main__":
    main(*sys.argv[1:3])
