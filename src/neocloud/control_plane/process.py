# pyright: strict
"""A process, a child of this one or not: start or find it, send it signals, wait for its end.

A pidfd refers to it, so that another process which gets the same number later is never mistaken for it.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_STARTED_AT = 22 - 3
"""Of the fields of /proc/PID/stat that follow the program's name."""


class Process:
    def __init__(self, pid: int, descriptor: int, began: int) -> None:
        self.pid = pid
        self.began = began
        """When it started, in the kernel's own count; tells it from others that had the number."""
        self._descriptor = descriptor

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    @classmethod
    def start(cls, arguments: Sequence[str], output: IO[bytes]) -> "Process":
        """Start it in a session of its own, so that it outlives this process."""
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
        child.returncode = 0  # without this Python warns that a child was left running
        # Its number cannot be another's, even when it has ended: nobody has waited for it yet.
        return cls(child.pid, os.pidfd_open(child.pid), began(child.pid))

    @classmethod
    def find(cls, pid: int, began_at: int) -> "Process | None":
        """Return the process with this number that started then; None when it has ended."""
        if pid <= 0:
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        if began(pid) != began_at:
            os.close(descriptor)
            return None
        return cls(pid, descriptor, began_at)

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing when the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    async def ended_within(self, seconds: float) -> bool:
        """Wait this long for its end. Returns True as soon as it has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            # Zero, too, must let the loop look once.
            await asyncio.wait_for(ended.wait(), max(seconds, 0.001))
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        self._reap()
        return True

    def _reap(self) -> None:
        with suppress(ChildProcessError):  # not our child: its parent reaps it
            os.waitpid(self.pid, os.WNOHANG)


def began(pid: int) -> int:
    """Return when the process started, in the kernel's clock ticks; 0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_STARTED_AT])
    except (OSError, ValueError, IndexError):
        return 0
