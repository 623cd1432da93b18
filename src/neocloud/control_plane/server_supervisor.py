# pyright: strict
"""The supervisor of the server: start it, and start it again when it dies, until SIGTERM.

    python -m neocloud.control_plane.server_supervisor HOME PROGRAM ARGUMENT...

`neo up` starts one for each state folder. It ends when the server ends by itself without an error, as after
`kill PID`, which stops the server and leaves its workloads running. It imports nothing of the product beyond
`core.child_process`, and wakes up only for a signal or the server's end. When it is killed, the server goes
on; the next `neo up` starts another supervisor, which adopts the server.
"""

import fcntl
import json
import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from neocloud.core.child_process import Backoff, Child, Process
from neocloud.core.logs import set_up_logging

logger = logging.getLogger(__name__)

STOP_SECONDS = 60.0


def server_child(home: Path) -> Child:
    """Return the server of a state folder, as its supervisor runs it."""
    backoff = Backoff(first_seconds=0.05)
    return Child("server", home / "log" / "server.log", home / "server-process.json", backoff)


def supervisor_child(home: Path) -> Child:
    """Return the supervisor of a state folder, as `neo up` starts it."""
    return Child("supervisor", home / "log" / "supervisor.log", home / "supervisor.json")


def ended_file(home: Path) -> Path:
    """Return the file in which a server notes that a signal ended it, with its id and start time."""
    return home / "ended.json"


def supervisor_command(home: Path, command: list[str]) -> list[str]:
    """Return how to start the supervisor of a server that is started by `command`."""
    return [sys.executable, "-m", "neocloud.control_plane.server_supervisor", str(home), *command]


class Supervisor:
    """Runs the server of one state folder. SIGTERM stops both; SIGHUP ends a pause before a restart."""

    def __init__(self, home: Path, command: list[str]) -> None:
        self._home = home
        self._command = command
        self._child = server_child(home)
        self._is_stopping = False
        self._folder = home.stat()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Run until a stop signal, or until the server has ended without an error."""
        self._follow_signals()
        process = self._child.find()
        if process is not None:
            self._child.adopt(process)
            logger.info("the server (process %d) went on; adopted", process.pid)
        while not self._is_stopping:
            process = process or self._start()
            began = time.monotonic()
            if process is not None:
                if not self._ends(process) or self._ended_well(process):
                    return
                pause = self._child.note_death(time.monotonic() - began)
            else:
                pause = self._child.backoff.longest_seconds
            process = None
            self._pause(pause)
            if not self._is_same_folder():
                logger.info("the state folder was removed")
                return

    def _follow_signals(self) -> None:
        def stop(*_: object) -> None:
            self._is_stopping = True

        def start_now(*_: object) -> None:
            """Do nothing: the signal ends the pause."""

        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, start_now)

    def _start(self) -> Process | None:
        try:
            process = self._child.start(self._command)
        except OSError as error:
            logger.error("the server cannot be started: %s", error)
            return None
        logger.info("the server is process %d", process.pid)
        return process

    def _ends(self, process: Process) -> bool:
        """Wait for the server's end. False: it was stopped, as this process was told to."""
        while not self._is_stopping:
            if process.wait(None, self._wake):
                return True
            self._drain()
        logger.info("stopping the server (process %d)", process.pid)
        process.stop(STOP_SECONDS)
        return False

    def _ended_well(self, process: Process) -> bool:
        """Return whether it ended on request. Only its note tells when the server was adopted."""
        is_well = process.exit_code == 0
        if process.exit_code is None:
            is_well = self._has_noted_its_end(process)
        if is_well:
            logger.info("the server (process %d) ended on request", process.pid)
        return is_well

    def _has_noted_its_end(self, process: Process) -> bool:
        try:
            note: object = json.loads(ended_file(self._home).read_text())
        except (OSError, ValueError):
            return False
        return note == {"pid": process.pid, "began": process.began}

    def _pause(self, seconds: float) -> None:
        self._drain()
        if not self._is_stopping:
            select.select([self._wake], [], [], seconds)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass

    def _is_same_folder(self) -> bool:
        with suppress(OSError):
            now = self._home.stat()
            return (now.st_dev, now.st_ino) == (self._folder.st_dev, self._folder.st_ino)
        return False


def main() -> int:
    os.umask(0o077)
    home, command = Path(sys.argv[1]), sys.argv[2:]
    set_up_logging("info", "text")
    lock = os.open(home / "supervisor.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.error("another supervisor runs on %s", home)
        return 1
    Supervisor(home, command).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
