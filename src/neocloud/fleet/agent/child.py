"""Probes in processes of their own, which can hang or crash without the agent doing so.

A probe is a child of `os.fork`: a fraction of the cost of a new interpreter, and safe as this program has
one thread and loads no gRPC. It leads a process group, which is killed at its deadline. A child that is
blocked in the kernel cannot be killed: it is left and named, and no second one is started while it lives.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from neocloud.fleet.agent.probe_result import ProbeResult, decode, encode

MOST_BYTES = 4 << 20
KILL_SECONDS = 0.5
"""How long a killed child has to be gone."""
WATCH_SECONDS = 0.5
MOST_WATCHED = 64
"""Processes of a probe."""
STOP_SECONDS = 0.1
"""How often a run is asked whether it should stop."""


_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
"""A probe does not outlive the agent."""


@dataclass(frozen=True)
class Job:
    """A probe to run."""

    name: str
    run: Callable[[], ProbeResult]
    deadline_s: float
    most_s: float | None = None
    """If given, the deadline does not count time in which the probe waits for a processor or is stopped, and
    it is ended after so long at the latest."""


@dataclass(frozen=True)
class ProbeOutcome:
    """The end of a probe: its result, or the reason why there is none."""

    name: str
    found: ProbeResult | None
    why: str = ""
    seconds: float = 0.0
    lives: bool = False
    """Whether its process is still there; `seconds` is for how long."""
    is_stopped: bool = False
    """Whether it was ended since something more important came."""
    waited_s: float = 0.0
    """For how long it waited for a processor, or was stopped; watched where `most_s` is given."""
    is_late: bool = False
    """Whether it was ended after `most_s`, before it had its deadline's time on a processor."""


@dataclass
class _Child:
    job: Job
    pid: int
    pipe: int
    started: float
    data: bytearray
    delays: dict[int, float] = field(default_factory=dict[int, float])
    """Seconds for which each of its processes has waited for a processor."""
    stopped_s: float = 0.0
    watched_at: float = 0.0

    def age(self) -> float:
        return time.monotonic() - self.started

    @property
    def waited_s(self) -> float:
        return max(self.delays.values(), default=0.0) + self.stopped_s

    def watch(self, *, at_once: bool = False) -> None:
        """Note how long it has waited, twice a second. Where the kernel does not tell, it has not."""
        now, last = time.monotonic(), self.watched_at or self.started
        if self.job.most_s is None or (now - last < WATCH_SECONDS and not at_once):
            return
        self.watched_at = now
        for pid in _family(self.pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                self.delays[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        with contextlib.suppress(OSError, IndexError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            self.stopped_s += now - last if state in "Tt" else 0.0

    def left(self) -> float:
        """Return for how long it may run on."""
        if self.job.most_s is None:
            return self.job.deadline_s - self.age()
        return min(self.job.deadline_s - self.age() + self.waited_s, self.job.most_s - self.age())

    @property
    def is_late(self) -> bool:
        return self.job.most_s is not None and self.age() - self.waited_s < self.job.deadline_s


class Children:
    """Runs probes; keeps those that cannot be ended."""

    def __init__(self) -> None:
        self._stuck: dict[str, _Child] = {}

    @property
    def stuck(self) -> Mapping[str, int]:
        """Process ids by the names of probes that cannot be ended."""
        return {name: child.pid for name, child in self._stuck.items()}

    def run(self, jobs: list[Job], stop: Callable[[], str] | None = None) -> list[ProbeOutcome]:
        """Run the jobs at the same time, and return when each has ended or is past its deadline.

        `stop` is asked several times a second: where it says why, all that still run are ended at once."""
        self._reap()
        outcomes = list[ProbeOutcome]()
        running = dict[int, _Child]()
        for job in jobs:
            if child := self._stuck.get(job.name):
                outcomes.append(_stuck(child))
            else:
                started = _start(job)
                running[started.pipe] = started
        try:
            self._wait(running, outcomes, stop)
        finally:  # where a signal ends the agent
            for child in running.values():
                _kill(child.pid)
        return outcomes

    def _wait(
        self, running: dict[int, _Child], outcomes: list[ProbeOutcome], stop: Callable[[], str] | None
    ) -> None:
        while running:
            if stop is not None and (why := stop()):
                ended = [self._end(child) for child in running.values()]
                outcomes += [replace(each, why=why, is_stopped=True) for each in ended]
                running.clear()
                return
            for child in running.values():
                child.watch()
            left = min(child.left() for child in running.values())
            if any(child.job.most_s is not None for child in running.values()):
                left = min(left, WATCH_SECONDS)
            pause = max(0.0, left if stop is None else min(left, STOP_SECONDS))
            ready, _, _ = select.select(list(running), [], [], pause)
            for pipe in ready:
                if outcome := self._read(running[pipe]):
                    outcomes.append(outcome)
                    del running[pipe]
            for pipe, child in list(running.items()):
                if child.left() > 0:
                    continue
                child.watch(at_once=True)
                if child.left() <= 0:
                    outcomes.append(replace(self._end(child), waited_s=child.waited_s, is_late=child.is_late))
                    del running[pipe]

    def _read(self, child: _Child) -> ProbeOutcome | None:
        data = os.read(child.pipe, 1 << 16)
        child.data += data
        if data and len(child.data) <= MOST_BYTES:
            return None
        if data:
            self._end(child)
            return ProbeOutcome(
                child.job.name, None, f"the probe answers more than {MOST_BYTES:,} bytes", child.age()
            )
        os.close(child.pipe)
        child.watch(at_once=True)
        _, status = os.waitpid(child.pid, 0)
        return replace(_ended(child, status), waited_s=child.waited_s)

    def _end(self, child: _Child) -> ProbeOutcome:
        _kill(child.pid)
        os.close(child.pipe)
        if _is_gone(child.pid):
            why = f"the probe did not answer within {child.job.deadline_s:g} s and was ended"
            return ProbeOutcome(child.job.name, None, why, child.age())
        self._stuck[child.job.name] = child
        return _stuck(child)

    def _reap(self) -> None:
        for name, child in list(self._stuck.items()):
            if os.waitpid(child.pid, os.WNOHANG)[0]:
                del self._stuck[name]


def _family(pid: int) -> list[int]:
    """Return a process and those that it started, as far as the kernel tells."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/{each}/task/{each}/children").read_text()
            found += [int(child) for child in text.split()[: max(0, MOST_WATCHED - len(found))]]
    return found


def _start(job: Job) -> _Child:
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(job, pid, reading, time.monotonic(), bytearray())
    code = 1
    try:
        gc.disable()  # a collection would copy the pages that are shared with the agent
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nothing = os.open("/dev/null", os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        answer = encode(job.run())
        while answer:
            answer = answer[os.write(writing, answer) :]
        code = 0
    except BaseException as error:  # noqa: BLE001 - the border of a probe: what it raises is its answer
        os.write(writing, f"{type(error).__name__}: {error}".encode(errors="replace")[:500])
    finally:
        os._exit(code)


def _ended(child: _Child, status: int) -> ProbeOutcome:
    code, age, name = os.waitstatus_to_exitcode(status), child.age(), child.job.name
    if code < 0:
        return ProbeOutcome(name, None, f"the probe was ended by {signal.Signals(-code).name}", age)
    text = bytes(child.data)
    if code:
        return ProbeOutcome(name, None, f"the probe failed: {text.decode(errors='replace')[:500]}", age)
    try:
        return ProbeOutcome(name, decode(text), "", age)
    except ValueError as error:
        return ProbeOutcome(name, None, str(error), age)


def _stuck(child: _Child) -> ProbeOutcome:
    why = (
        f"process {child.pid} of the probe has been blocked in the kernel for {child.age():.0f} s"
        " and cannot be ended; no second one is started"
    )
    return ProbeOutcome(child.job.name, None, why, child.age(), lives=True)


def _is_gone(pid: int) -> bool:
    """Wait for a killed child, and return whether it ended."""
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], KILL_SECONDS)[0]:
            return False
    finally:
        os.close(handle)
    os.waitpid(pid, 0)
    return True


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the child may not lead its group yet
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return
