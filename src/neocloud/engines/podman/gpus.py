"""GPUs of this machine: which there are, and which pod has which.

Found with nvidia-smi, handed to containers by their CDI names. A GPU belongs to one container at a time; who
has it is read from the labels of the containers that exist.
"""

import asyncio
import contextlib
import csv
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neocloud.engines.base import Accelerator, EngineError, Reference
from neocloud.engines.manifest import GPU, Pod

_QUERY = "--query-gpu=index,name,memory.total"
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_ANSWER_SECONDS = 20


def find_accelerators() -> tuple[tuple[Accelerator, ...], tuple[str, ...]]:
    """GPUs and warnings about them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ()
    try:
        answer = subprocess.run(
            [program, _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
            umask=0o022,  # it makes the device files where they are missing
        )
    except (OSError, subprocess.SubprocessError) as error:
        return (), (f"nvidia-smi is here but does not answer ({error}); GPUs are not used.",)
    found = parse_accelerators(answer.stdout)
    if found and not any(list(folder.glob("*nvidia*")) for folder in _CDI_FOLDERS):
        return found, (
            "GPUs are here, but containers cannot get them yet: run "
            "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`.",
        )
    return found, ()


def parse_accelerators(text: str) -> tuple[Accelerator, ...]:
    """Lines of `index, name, memory in MiB` as nvidia-smi prints them."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 3 and row[0].isdigit() and row[2].strip().isdigit():
            found.append(Accelerator("nvidia", row[1].strip(), int(row[2]), int(row[0])))
    return tuple(found)


class GpuAllocator:
    """Gives GPUs to pods about to be created."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._reserved: dict[Reference, set[int]] = {}

    @contextlib.asynccontextmanager
    async def reserve(
        self, pod: Pod, look: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
    ) -> AsyncIterator[dict[str, tuple[int, ...]]]:
        """GPU numbers by container, held until the containers that carry them as labels exist.

        `look` gives the containers that exist; it is asked when nobody else is choosing.
        """
        wanted = _wanted(pod)
        if not wanted:
            yield {}
            return
        reference = pod.reference
        async with self._lock:
            found, _ = await asyncio.to_thread(find_accelerators)
            taken = _in_use(await look()).union(*self._reserved.values())
            free = sorted({gpu.index for gpu in found} - taken)
            if len(free) < sum(wanted.values()):
                raise EngineError(
                    f"Pod {reference.name} asks for {sum(wanted.values())} GPU(s), but of {len(found)} on "
                    f"this machine {len(free)} are free; ask for fewer or remove a pod that has some."
                )
            given = {}
            for container, count in wanted.items():
                given[container] = tuple(free[:count])
                free = free[count:]
            self._reserved[reference] = {number for numbers in given.values() for number in numbers}
        try:
            yield given
        finally:
            del self._reserved[reference]


def _wanted(pod: Pod) -> dict[str, int]:
    counts = {container.name: int(container.limits.get(GPU, 0)) for container in pod.containers}
    return {name: count for name, count in counts.items() if count}


def _in_use(rows: Iterable[Mapping[str, Any]]) -> set[int]:
    numbers = ",".join(row["Labels"].get("neocloud.gpus", "") for row in rows).split(",")
    return {int(number) for number in numbers if number}
