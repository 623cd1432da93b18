"""A process that may be our child or not: is it still there, has it ended, tell it something.

Held by a pidfd, so a number that the kernel gives to another process later is never mistaken for it.
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
        """In a session of its own: meant to outlive us."""
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
        """The process with this number that began then; None when it has ended."""
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
        """Nothing happens to one that has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    async def ended_within(self, seconds: float) -> bool:
        """Wait so long for its end; True at once when it has come."""
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
        with suppress(ChildProcessError):  # adopted: its end is told to somebody else
            os.waitpid(self.pid, os.WNOHANG)


def began(pid: int) -> int:
    """0 for a process that is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_STARTED_AT])
    except (OSError, ValueError, IndexError):
        return 0
