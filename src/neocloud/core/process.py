"""Processes: start one, find it again by its id and start time, wait until it ends, stop it."""

import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

KILL_SECONDS = 10.0
"""How long a process may take to end after SIGKILL; it may be inside a call to a slow disk."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTED_AT = 22 - 3
"""Index among the fields of /proc/PID/stat that follow the program's name."""
_dropped: set[int] = set()
"""Children that nobody refers to any more; they are reaped when the next one starts."""


class Process:
    """A process, a child of this one or not. A pidfd refers to it, so that its id is never another's."""

    def __init__(self, pid: int, descriptor: int, began: int, *, is_child: bool = False) -> None:
        self.pid = pid
        self.began = began
        """When it started, in the kernel's own count; tells it from others that had the id."""
        self.exit_code: int | None = None
        """Exit code of a child that has ended; negative: the signal that killed it. None: running, or not
        known.
        """
        self._descriptor = descriptor
        self._is_unreaped = is_child

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
        if self._is_unreaped:
            _dropped.add(self.pid)

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        output: IO[bytes],
        *,
        environment: Mapping[str, str] | None = None,
        umask: int = -1,
        stdin: int = subprocess.DEVNULL,
        keep: Sequence[int] = (),
    ) -> "Process":
        """Start it in a session of its own, so that it outlives this process. Raises OSError, with nothing
        running. `stdin` is a descriptor to read from; the process inherits those in `keep`, too."""
        _reap_dropped()
        child = subprocess.Popen(
            arguments,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            umask=umask,
            pass_fds=keep,
            start_new_session=True,
        )
        try:
            # Its id cannot be another's, even when it has ended: it was not waited for yet.
            descriptor = os.pidfd_open(child.pid)
        except OSError:
            child.kill()
            child.wait()
            raise
        child.returncode = 0  # without this Python warns that a child was left running
        return cls(child.pid, descriptor, began(child.pid), is_child=True)

    @classmethod
    def find(cls, pid: int, began_at: int) -> "Process | None":
        """Return the process with this id that started then; None when it has ended."""
        if pid <= 0:
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        found = cls(pid, descriptor, began_at)
        has_ended = began(pid) != began_at or found.wait(0)  # also one that its parent has not reaped yet
        return None if has_ended else found

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the process that has this id now."""
        return cls.find(pid, began(pid))

    @property
    def age_seconds(self) -> float:
        """Return the seconds since it started, also of one that has ended."""
        return age_seconds(self.began)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        return self._descriptor

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing when the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, seconds: float | None, wake: int | None = None) -> bool:
        """Block until it ends, this long at most (None: no limit), or until `wake` becomes readable.

        Returns whether it has ended.
        """
        return bool(wait_for_any([self], seconds, wake))

    def stop(self, grace_seconds: float) -> bool:
        """Send SIGTERM, and SIGKILL after this long. Blocks; returns whether it has ended."""
        self.send(signal.SIGTERM)
        if self.wait(grace_seconds):
            return True
        logger.warning("process %d has not ended in %g s; it is killed", self.pid, grace_seconds)
        self.send(signal.SIGKILL)
        return self.wait(KILL_SECONDS)

    def reap(self) -> None:
        """Take the exit code of a child that has ended."""
        if not self._is_unreaped:
            return
        self._is_unreaped = False
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._is_unreaped = pid == 0
            self.exit_code = os.waitstatus_to_exitcode(status) if pid else None

    @property
    def why_ended(self) -> str:
        """Return how it ended, to follow its name in a sentence."""
        if self.exit_code is None:
            return "ended"
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        return f"was killed by signal {-self.exit_code}"


def wait_for_any(
    processes: Sequence[Process], seconds: float | None, wake: int | None = None
) -> list[Process]:
    """Block until one of them ends, this long at most (None: no limit), or until `wake` becomes readable.

    Returns those that have ended.
    """
    poll = select.poll()
    for process in processes:
        poll.register(process.fileno(), select.POLLIN)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(None if seconds is None else max(seconds, 0) * 1000)}
    ended = [process for process in processes if process.fileno() in ready]
    for process in ended:
        process.reap()
    return ended


def began(pid: int) -> int:
    """Return when the process started, in the kernel's clock ticks; 0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_STARTED_AT])
    except (OSError, ValueError, IndexError):
        return 0


def age_seconds(began_at: int) -> float:
    """Return the seconds since a process started, from when it did in the kernel's clock ticks."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_at / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """Return what tells this boot of the machine from others: start times are counted from it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _reap_dropped() -> None:
    for pid in list(_dropped):
        try:
            is_running = os.waitpid(pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            is_running = False
        if not is_running:
            _dropped.discard(pid)
