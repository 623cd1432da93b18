"""The result of a probe, and the form in which its process passes it on."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from neocloud.fleet.nodes.gpu_use import GpuUse
from neocloud.fleet.nodes.parts import HostPart


@dataclass(frozen=True)
class Reading:
    """A number that was read. `checks` says what it means and which limit it has."""

    check: str
    device: str
    value: float
    note: str = ""
    """The origin of the value, for people."""
    gpu: str = ""
    """Model of the GPU, where limits depend on it."""
    unit: str = ""
    """Unit of the value, where the check does not fix it."""


@dataclass(frozen=True)
class Unreadable:
    """Something that should give an answer and did not."""

    check: str
    device: str
    why: str


@dataclass(frozen=True)
class NotRun:
    """A check that does not apply here, or has nothing to be compared with."""

    check: str
    why: str


@dataclass(frozen=True)
class KernelLines:
    """New records of the kernel log: (time_s, sequence, message) of those that may report a fault."""

    next_sequence: int
    lost: int
    read: int
    now_s: float
    lines: list[tuple[float | None, int, str]]


@dataclass
class ProbeResult:
    """Everything that one run of a probe found."""

    readings: list[Reading] = field(default_factory=list[Reading])
    unreadable: list[Unreadable] = field(default_factory=list[Unreadable])
    not_run: list[NotRun] = field(default_factory=list[NotRun])
    kernel: KernelLines | None = None
    mounts: list[str] = field(default_factory=list[str])
    """Mount points whose room is asked for next, each in a process of its own."""
    simulated: str = ""
    """The simulated part, or ""."""
    parts: list[HostPart] = field(default_factory=list[HostPart])
    gpus: list[GpuUse] = field(default_factory=list[GpuUse])

    def read(
        self, check: str, device: str, value: float, note: str = "", gpu: str = "", unit: str = ""
    ) -> None:
        self.readings.append(Reading(check, device, float(value), note, gpu, unit))

    def fail_to_read(self, check: str, device: str, why: object) -> None:
        self.unreadable.append(Unreadable(check, device, str(why)[:300]))

    def leave_out(self, why: str, *checks: str) -> None:
        self.not_run += [NotRun(check, why) for check in checks]


def encode(found: ProbeResult) -> bytes:
    return json.dumps(dataclasses.asdict(found)).encode()


def decode(data: bytes) -> ProbeResult:
    """Return what `encode` was given. The data come from a child of this program. Raises ValueError."""
    try:
        given: dict[str, Any] = json.loads(data)
        kernel = given["kernel"]
        return ProbeResult(
            [Reading(**each) for each in given["readings"]],
            [Unreadable(**each) for each in given["unreadable"]],
            [NotRun(**each) for each in given["not_run"]],
            _kernel(kernel) if kernel else None,
            list(given["mounts"]),
            given["simulated"],
            [HostPart(*each) for each in given["parts"]],
            [GpuUse(**each) for each in given["gpus"]],
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the answer of the probe is not complete: {error!r}") from error


def _kernel(given: dict[str, Any]) -> KernelLines:
    lines = [(at, sequence, message) for at, sequence, message in given["lines"]]
    return KernelLines(given["next_sequence"], given["lost"], given["read"], given["now_s"], lines)
