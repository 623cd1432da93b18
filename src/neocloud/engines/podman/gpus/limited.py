"""Run a short program that may get stuck in a driver.

A process that waits inside the kernel ends only when the kernel returns, whatever it is sent. So nothing here
waits for one that was killed, and no second one is started while it is there.
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from neocloud.engines.base import EngineError

_KILL_SECONDS = 1.0


class Stuck(EngineError):
    """The program did not end within its time."""


class LimitedRunner:
    """Runs one program at a time; call it in a thread."""

    def __init__(self) -> None:
        self._left: subprocess.Popen[bytes] | None = None

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Return how it ended and what it printed. Raises Stuck, or EngineError when it cannot be started."""
        if self._left is not None and self._left.poll() is None:
            raise Stuck(
                f"{command[0]} is not started: process {self._left.pid} is still stuck in a driver; `dmesg` "
                "may say why."
            )
        self._left = None
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                umask=0o022,  # NVML makes the device files where they are missing
            )
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be started: {error}.") from error
        try:
            output, errors = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise Stuck(f"{command[0]} did not end within {seconds:g} s.") from None
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if process.poll() is None:
            self._left = process
