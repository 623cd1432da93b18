"""Find the GPUs of this machine: NVML names them, sysfs says how they are attached.

NVML is called in a process of its own, with a time limit; a machine without NVML has no GPUs. A GPU that is
passed to a virtual machine is not NVML's any more; what NVML said of it before was recorded. GPUs that are
another cloud's are not found.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.engines.base import Accelerator, EngineError
from neocloud.engines.podman.gpus import nvml_report
from neocloud.engines.podman.gpus.limited import LimitedRunner
from neocloud.engines.podman.gpus.owner import GpuOwner
from neocloud.engines.podman.gpus.pci import PciBus, normal_address

ANSWER_SECONDS = 20.0
FRESH_SECONDS = 10.0
"""How long an answer is used again."""
FAILED_SECONDS = 60.0
"""How long no answer is; a driver that hangs is not called every few seconds."""
_PATIENCE_SECONDS = 2.0
"""How long a caller waits for a new answer where there is an old one."""
_MOST_GPUS = 64


@dataclass(frozen=True)
class FoundGpus:
    """The GPUs of this machine; those that do not answer are in the warnings only."""

    accelerators: tuple[Accelerator, ...] = ()
    warnings: tuple[str, ...] = ()
    minors: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of the device files, by a GPU's key, of those that the driver has."""
    is_failure: bool = False
    """NVML did not answer at all."""


class GpuDiscovery:
    """Answers from memory for some seconds; a new answer is looked for by one caller at a time."""

    def __init__(
        self,
        pci: PciBus,
        passed: Callable[[], Sequence[Accelerator]],
        *,
        owner: GpuOwner | None = None,
        environment: Mapping[str, str] | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`passed` returns the GPUs that VFIO has for this cloud; `environment` is that of NVML's process, in
        tests. Without an `owner` there is no other cloud.
        """
        self._pci = pci
        self._passed = passed
        self._owner = owner
        self._environment = environment
        self._answer_seconds = answer_seconds
        self._runner = LimitedRunner()
        self._last: tuple[float, FoundGpus] | None = None
        self._search: asyncio.Task[FoundGpus] | None = None

    async def find(self, *, is_fresh: bool = False) -> FoundGpus:
        """Return the GPUs. `is_fresh`: as they are now, unless the driver does not answer."""
        if self._last is not None and not is_fresh:
            until, last = self._last
            if time.monotonic() < until:
                return last
            done, _ = await asyncio.wait({self._searching()}, timeout=_PATIENCE_SECONDS)
            return next((task.result() for task in done), last)
        return await asyncio.shield(self._searching())

    def close(self) -> None:
        if self._search is not None:
            self._search.cancel()

    def _searching(self) -> asyncio.Task[FoundGpus]:
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._look())
        return self._search

    async def _look(self) -> FoundGpus:
        found = await asyncio.to_thread(self._look_now)
        seconds = FAILED_SECONDS if found.is_failure else FRESH_SECONDS
        self._last = time.monotonic() + seconds, found
        return found

    def _look_now(self) -> FoundGpus:
        before = self._passed()
        if not self._pci.has_nvidia():
            passed = self._all_passed(before)
            return FoundGpus(passed, _warnings_of(passed))
        try:
            gpus, problems = self._ask_driver()
        except EngineError as error:
            warning = f"The driver of the GPUs does not answer ({error}); GPUs are not used."
            passed = self._all_passed(before)
            return FoundGpus(passed, (warning, *_warnings_of(passed)), is_failure=True)
        passed = self._all_passed(before)
        if gpus and self._owner and (other := self._owner.claim()):
            return FoundGpus(passed, (_not_ours(len(gpus), other), *_warnings_of(passed)))
        answering = [_attached(self._pci, gpu) for gpu, _ in gpus]
        known = {each.key for each in answering}
        accelerators = (*answering, *(each for each in passed if each.key not in known))
        warnings = [f"{problem}; it is not used. Restart the host if it stays so." for problem in problems]
        minors = {gpu.key: minor for gpu, minor in gpus}
        return FoundGpus(accelerators, (*warnings, *_warnings_of(accelerators)), minors)

    def _all_passed(self, before: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
        """Return the GPUs that VFIO had before NVML was called, and those that it has now.

        One that VFIO gets meanwhile may be missing in NVML's answer, and a machine would be said to have
        lost it.
        """
        either = {each.key: each for each in (*before, *self._passed())}
        return tuple(_attached(self._pci, each) for each in either.values())

    def _ask_driver(self) -> tuple[list[tuple[Accelerator, int]], list[str]]:
        """Return the GPUs with their minor numbers, and what does not work. Raises EngineError."""
        command = [sys.executable, "-I", str(Path(nvml_report.__file__))]
        ended = self._runner.run(command, seconds=self._answer_seconds, environment=self._environment)
        try:
            answer: nvml_report.Report = json.loads(ended.stdout)
            problems = [str(each) for each in answer["problems"]]
            return [_gpu(each) for each in answer["gpus"][:_MOST_GPUS]], problems
        except (ValueError, KeyError, TypeError) as error:
            reason = ended.stderr.decode(errors="replace").strip().splitlines() or [str(error)]
            raise EngineError(f"NVML ended with code {ended.returncode}: {reason[-1]}") from error


def _not_ours(count: int, home: Path) -> str:
    return (
        f"The {count} GPU(s) of this host are of the cloud in {home}, and are not used here: clouds on one "
        "host do not share them. They are free when that cloud is destroyed."
    )


def _gpu(given: nvml_report.Gpu) -> tuple[Accelerator, int]:
    address = normal_address(str(given["pci_address"]))
    name, memory, index = str(given["name"]), int(given["memory_mib"]), int(given["index"])
    return Accelerator("nvidia", name, memory, index, address, uuid=str(given["uuid"])), int(given["minor"])


def _attached(pci: PciBus, gpu: Accelerator) -> Accelerator:
    """Return the GPU with its IOMMU group, and why it cannot be passed to a virtual machine."""
    address = gpu.pci_address
    return Accelerator(
        gpu.vendor,
        gpu.model,
        gpu.memory_mib,
        gpu.index,
        address,
        pci.iommu_group(address) if address else "",
        gpu.uuid,
        pci.obstacle(address) if address else "",
    )


def _warnings_of(gpus: Sequence[Accelerator]) -> tuple[str, ...]:
    """Return one warning for each reason why GPUs cannot be passed to virtual machines."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for each in gpus:
        if each.passthrough_problem:
            by_reason[each.passthrough_problem].append(each.pci_address or str(each.index))
    return tuple(
        f"Virtual machines cannot get GPU {', '.join(places)}: {reason}."
        for reason, places in by_reason.items()
    )
