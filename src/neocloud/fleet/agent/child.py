# pyright: strict
"""Probes in processes of their own, which can hang or crash without the agent doing so.

A probe is a child of `os.fork`: a fraction of the cost of a new interpreter, and safe as this program has
one thread and loads no gRPC. It leads a process group, which is killed at its deadline. A child that is
blocked in the kernel cannot be killed: it is left and named, and no second one is started while it lives.
"""

import ctypes
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from neocloud.fleet.agent.found import Found, decode, encode

MOST_BYTES = 4 << 20
KILL_SECONDS = 0.5
"""How long a killed child has to be gone."""
STOP_SECONDS = 0.1
"""How often a run is asked whether it should stop."""


_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
"""A probe does not outlive the agent."""


@dataclass(frozen=True)
class Job:
    """A probe to run."""

    name: str
    run: Callable[[], Found]
    deadline_s: float


@dataclass(frozen=True)
class Outcome:
    """How a probe ended: with what it found, or with why there is nothing."""

    name: str
    found: Found | None
    why: str = ""
    seconds: float = 0.0
    lives: bool = False
    """Whether its process is still there; `seconds` is for how long."""
    is_stopped: bool = False
    """Whether it was ended since something more important came."""


@dataclass
class _Child:
    job: Job
    pid: int
    pipe: int
    started: float
    data: bytearray

    def age(self) -> float:
        return time.monotonic() - self.started


class Children:
    """Runs probes; keeps those that cannot be ended."""

    def __init__(self) -> None:
        self._stuck: dict[str, _Child] = {}

    @property
    def stuck(self) -> Mapping[str, int]:
        """Process ids by the names of probes that cannot be ended."""
        return {name: child.pid for name, child in self._stuck.items()}

    def run(self, jobs: list[Job], stop: Callable[[], str] | None = None) -> list[Outcome]:
        """Run the jobs at the same time, and return when each has ended or is past its deadline.

        `stop` is asked several times a second: where it says why, all that still run are ended at once."""
        self._reap()
        outcomes = list[Outcome]()
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
        self, running: dict[int, _Child], outcomes: list[Outcome], stop: Callable[[], str] | None
    ) -> None:
        while running:
            if stop is not None and (why := stop()):
                ended = [self._end(child) for child in running.values()]
                outcomes += [replace(each, why=why, is_stopped=True) for each in ended]
                running.clear()
                return
            left = min(child.job.deadline_s - child.age() for child in running.values())
            pause = max(0.0, left if stop is None else min(left, STOP_SECONDS))
            ready, _, _ = select.select(list(running), [], [], pause)
            for pipe in ready:
                if outcome := self._read(running[pipe]):
                    outcomes.append(outcome)
                    del running[pipe]
            for pipe, child in list(running.items()):
                if child.age() >= child.job.deadline_s:
                    outcomes.append(self._end(child))
                    del running[pipe]

    def _read(self, child: _Child) -> Outcome | None:
        data = os.read(child.pipe, 1 << 16)
        child.data += data
        if data and len(child.data) <= MOST_BYTES:
            return None
        if data:
            self._end(child)
            return Outcome(
                child.job.name, None, f"the probe answers more than {MOST_BYTES:,} bytes", child.age()
            )
        os.close(child.pipe)
        _, status = os.waitpid(child.pid, 0)
        return _ended(child, status)

    def _end(self, child: _Child) -> Outcome:
        _kill(child.pid)
        os.close(child.pipe)
        if _is_gone(child.pid):
            why = f"the probe did not answer within {child.job.deadline_s:g} s and was ended"
            return Outcome(child.job.name, None, why, child.age())
        self._stuck[child.job.name] = child
        return _stuck(child)

    def _reap(self) -> None:
        for name, child in list(self._stuck.items()):
            if os.waitpid(child.pid, os.WNOHANG)[0]:
                del self._stuck[name]


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


def _ended(child: _Child, status: int) -> Outcome:
    code, age, name = os.waitstatus_to_exitcode(status), child.age(), child.job.name
    if code < 0:
        return Outcome(name, None, f"the probe was ended by {signal.Signals(-code).name}", age)
    text = bytes(child.data)
    if code:
        return Outcome(name, None, f"the probe failed: {text.decode(errors='replace')[:500]}", age)
    try:
        return Outcome(name, decode(text), "", age)
    except ValueError as error:
        return Outcome(name, None, str(error), age)


def _stuck(child: _Child) -> Outcome:
    why = (
        f"process {child.pid} of the probe has been blocked in the kernel for {child.age():.0f} s"
        " and cannot be ended; no second one is started"
    )
    return Outcome(child.job.name, None, why, child.age(), lives=True)


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
