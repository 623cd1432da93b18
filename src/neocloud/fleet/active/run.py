"""Runs checks one after another, and ends them at once when a job starts on the node."""

import importlib
import importlib.util
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.fleet.active import cpu, dcgm, pair
from neocloud.fleet.active.catalogue import ActiveCheck, Better
from neocloud.fleet.active.judge import BUSY, CheckedBoot, CheckMeasurement, judge, plain, verdict
from neocloud.fleet.active.report import LONGEST_NOTE, Report
from neocloud.fleet.agent.child import Children, Job, ProbeOutcome
from neocloud.fleet.agent.document import LONGEST_NAME, Document, NotRun
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.nodes.events import Status, Verdict

NICE = 19
BUSY_FACTOR = 3.0
"""How many times its seconds a check may take on a host whose processors others use."""
BUSY_SHARE = 0.2
"""A program that waited for a processor in a larger part of its time has measured the others' load."""
GPU_PROGRAMS = "neocloud.fleet.active.gpu"
"""Module with `measure(name) -> list[tuple[device, value, unit, note]]`."""
GPU_DEVICES = ("nvidiactl", "nvidia0", "gpu0", "dxg")
Program = Callable[[Path], ProbeResult]


@dataclass
class Runner:
    host: str
    folder: Path
    """Where a folder for files is made."""
    stop: Callable[[], str]
    partner: pair.Partner | None = None
    """The other node, for checks that need two."""
    until: float = math.inf
    """End of the run, by the monotonic clock."""
    gives_way: bool = False
    """Whether `stop` watches for jobs, which must not find a load that this process cannot end."""
    boot: str = field(default_factory=lambda: Tree().boot_id())
    programs: dict[str, Program] = field(default_factory=lambda: dict(cpu.PROGRAMS))
    _children: Children = field(default_factory=Children)
    _preempted: str = ""
    _stop_took: float = 0.0

    def run(self, checks: Sequence[ActiveCheck]) -> Report:
        began, at = time.monotonic(), time.time()
        measured, verdicts, not_run = list[CheckMeasurement](), list[Verdict](), list[NotRun]()
        place = CheckedBoot(self.host, self.boot, at)
        folder = Path(tempfile.mkdtemp(prefix="neocloud-check-", dir=self.folder))
        try:
            for check in checks:
                said = self._answer(check, folder, place, measured)
                (verdicts if isinstance(said, Verdict) else not_run).append(said)  # pyright: ignore[reportArgumentType]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        document = Document(self.host, self.boot, at, since_boot, verdicts, not_run)
        seconds = time.monotonic() - began
        return Report(document, measured, seconds, plain(self._preempted, LONGEST_NOTE), self._stop_took)

    def serve(self, work: Callable[[], None], seconds: float) -> Report:
        """Answer the other node of a pair in a process that a job ends, too; the report has no values."""
        began, at = time.monotonic(), time.time()
        asked = _StopWatch(self.stop)

        def program(folder: Path) -> ProbeResult:
            work()
            return ProbeResult()

        (outcome,) = self._children.run([Job("serve", lambda: _niced(program, self.folder), seconds)], asked)
        if outcome.is_stopped:
            self._preempted, self._stop_took = outcome.why, time.monotonic() - asked.said_at
        elif outcome.found is None:
            raise OSError(outcome.why)
        document = Document(self.host, self.boot, at, time.clock_gettime(time.CLOCK_BOOTTIME), [], [])
        preempted = plain(self._preempted, LONGEST_NOTE)
        return Report(document, (), time.monotonic() - began, preempted, self._stop_took)

    def _answer(
        self, check: ActiveCheck, folder: Path, place: CheckedBoot, measured: list[CheckMeasurement]
    ) -> Verdict | NotRun:
        if why := self._reason_against(check):
            return NotRun(check.name, plain(why))
        program = self._program(check)
        asked = _StopWatch(self.stop)
        most = min(BUSY_FACTOR * check.seconds, self.until - time.monotonic())
        if most <= 0:
            return NotRun(check.name, f"{BUSY}the others took the time of the run")
        job = Job(check.name, lambda: _niced(program, folder), check.seconds, most)
        (outcome,) = self._children.run([job], asked)
        if outcome.is_stopped:
            self._preempted, self._stop_took = outcome.why, time.monotonic() - asked.said_at
            return NotRun(check.name, plain(f"It was ended: {outcome.why}"))
        return self._judged(check, outcome, place, measured)

    def _judged(
        self, check: ActiveCheck, outcome: ProbeOutcome, place: CheckedBoot, measured: list[CheckMeasurement]
    ) -> Verdict | NotRun:
        run = secrets.token_hex(4)
        waited = f"{BUSY}it waited {outcome.waited_s:.1f} of {outcome.seconds:.1f} s for a processor"
        if outcome.is_late:
            return NotRun(check.name, waited)
        if outcome.found is None:
            return verdict(check, Status.UNKNOWN, outcome.why, "", "catalogue", place, run)
        if outcome.found.not_run:
            return NotRun(check.name, plain(outcome.found.not_run[0].why))
        found = [
            CheckMeasurement(
                *(check.name, plain(each.device, LONGEST_NAME), each.value),
                *(plain(each.unit, LONGEST_NAME), plain(each.note, LONGEST_NOTE)),
            )
            for each in outcome.found.readings
        ]
        said = judge(check, found, place, run)
        if check.better is Better.EQUAL or outcome.waited_s <= BUSY_SHARE * outcome.seconds:
            measured += found
        elif isinstance(said, NotRun) or said.status is not Status.PASS:
            return NotRun(check.name, waited)
        return said  # what passes in spite of the load is not a value to compare others with

    def _reason_against(self, check: ActiveCheck) -> str:
        self._preempted = self._preempted or self.stop()
        if self._preempted:
            return f"It was not begun: {self._preempted}"
        if not check.program:
            return "This release has no program for it"
        if check.program in ("gpu", "dcgm") and not has_gpu():
            return "There is no GPU here"
        if check.program == "dcgm" and self.gives_way:
            return "DCGM's host engine keeps running where a job ends dcgmi; run it with --beside-jobs"
        if check.program == "pair" and self.partner is None:
            return "It needs a second node, and none was given"
        return ""

    def _program(self, check: ActiveCheck) -> Program:
        if check.program == "gpu":
            return lambda folder: on_gpu(check)
        if check.program == "dcgm":
            return dcgm.dcgm_diag
        if (partner := self.partner) is not None and check.program == "pair":
            return lambda folder: pair.measure(check.name, partner)
        return self.programs[check.name]


def _niced(program: Program, folder: Path) -> ProbeResult:
    """Run in the child alone: the parent has to get a processor at once when a job takes all of them."""
    os.nice(NICE)
    return program(folder)


class _StopWatch:
    """Remembers when the reason to stop was seen."""

    def __init__(self, stop: Callable[[], str]) -> None:
        self._stop, self.said_at = stop, 0.0

    def __call__(self) -> str:
        why = self._stop()
        if why:
            self.said_at = time.monotonic()
        return why


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether a device of a GPU is there. Loads nothing."""
    return any((devices / name).exists() for name in GPU_DEVICES)


def on_gpu(check: ActiveCheck) -> ProbeResult:
    """Run a program of `neocloud.fleet.active.gpu`. In a process of its own, as it loads CUDA."""
    found = ProbeResult()
    if importlib.util.find_spec(GPU_PROGRAMS) is None:
        found.leave_out("This release has no program for it", check.name)
    elif importlib.util.find_spec("torch") is None:
        found.leave_out("There is no torch in this Python", check.name)
    elif not importlib.import_module("torch").cuda.is_available():
        found.leave_out("There is no GPU that CUDA can use", check.name)
    else:
        for device, value, unit, note in importlib.import_module(GPU_PROGRAMS).measure(check.name):
            found.read(check.name, str(device), float(value), str(note), unit=str(unit))
    return found
