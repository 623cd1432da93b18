"""The supervisor of the server: start it, and start it again when it dies, until SIGTERM.

    python -m neocloud.control_plane.server_supervisor HOME PROGRAM ARGUMENT...

`neo up` starts one for each state folder. It ends when the server ends by itself without an error, as after
`kill PID`, which stops the server and leaves its workloads running. It imports nothing of the product beyond
processes, and wakes up only for a signal or the end of a process.

It keeps two processes beside the server. Its *successor*, the same program, waits for the lock that the
supervisor holds: when the supervisor is killed, the successor adopts the server or starts another one. The
*prepared server* has imported the server's program and waits: it serves as soon as the server dies. It is
handed to a successor, too, so that it does not end with the supervisor.
"""

import fcntl
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from neocloud.control_plane.prepared_server import PreparedServer
from neocloud.core.child_process import Backoff, Child
from neocloud.core.logs import set_up_logging
from neocloud.core.process import Process, wait_for_any

# Run as a program, `__name__` is "__main__", of which only warnings are logged.
logger = logging.getLogger("neocloud.control_plane.server_supervisor")

STOP_SECONDS = 60.0
SUCCESSOR = "--successor"
"""The option of a successor. After "=", the prepared server that it is handed."""
PREPARE_SECONDS = 30.0
"""How long a server has run before another one is prepared. In tests most live shorter, and need none."""
GOOD_LIFE_SECONDS = 10.0
"""A server that has run this long does not end at each start: it is started again without a pause."""


def server_child(home: Path) -> Child:
    """Return the server of a state folder, as its supervisor runs it."""
    backoff = Backoff(first_seconds=0.05, good_life_seconds=GOOD_LIFE_SECONDS)
    return Child("server", home / "log" / "server.log", home / "server-process.json", backoff)


def supervisor_child(home: Path) -> Child:
    """Return the supervisor of a state folder, as `neo up` starts it."""
    return Child("supervisor", home / "log" / "supervisor.log", home / "supervisor.json")


def successor_child(home: Path) -> Child:
    """Return the successor of a state folder's supervisor."""
    return Child("successor", home / "log" / "supervisor.log", home / "successor.json")


def ended_file(home: Path) -> Path:
    """Return the file in which a server notes that a signal ended it, with its id and start time."""
    return home / "ended.json"


def supervisor_command(home: Path, command: list[str], *role: str) -> list[str]:
    """Return how to start the supervisor of a server that is started by `command`, or its successor."""
    return [sys.executable, "-m", "neocloud.control_plane.server_supervisor", *role, str(home), *command]


def without_role(words: list[str]) -> list[str]:
    """Return the words of a running supervisor as they are of one that was no successor before."""
    return [word for word in words if word.partition("=")[0] != SUCCESSOR]


class Supervisor:
    """Runs the server of one state folder. SIGTERM stops both; SIGHUP ends a pause before a restart."""

    def __init__(
        self,
        home: Path,
        command: list[str],
        *,
        takes_over: bool = False,
        prepared: PreparedServer | None = None,
    ) -> None:
        self._home = home
        self._command = command
        self._takes_over = takes_over
        """Whether it was the successor of a supervisor that has died."""
        self._prepared = prepared
        self._child = server_child(home)
        self._successor = successor_child(home)
        self._due: dict[Callable[[], None], float] = {}
        """Functions that start programs beside a running server, with their times by the monotonic clock."""
        self._is_stopping = False
        self._folder = home.stat()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Run until a stop signal, or until the server has ended without an error."""
        self._follow_signals()
        self._keep_serving()
        self._end_others()  # not after an error of this program: then the successor continues

    def _keep_serving(self) -> None:
        process = self._child.find()
        if process is not None:
            self._adopt(process)
        elif self._takes_over:
            if self._has_noted_its_end(self._child.record()):
                return
            self._child.note_end_unseen()
        while not self._is_stopping:
            process = process or self._start()
            if process is not None:
                if not self._ends(process) or self._ended_well(process):
                    return
                pause = self._child.note_death(process.age_seconds)  # of one that was adopted, too
            else:
                pause = self._child.backoff.longest_seconds
            process = None
            self._pause(pause)
            if not self._is_same_folder():
                logger.info("the state folder was removed")
                return

    def _adopt(self, server: Process) -> None:
        self._child.adopt(server)
        logger.info("adopted the server that kept running (process %d)", server.pid)
        if self._prepared is not None and self._prepared.process.pid == server.pid:
            self._prepared.close()  # it serves
            self._prepared = None

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
        prepared, self._prepared = self._prepared, None
        try:
            process = prepared.serve(self._child) if prepared is not None else None
            process = process or self._child.start(self._command)
        except OSError as error:
            logger.error("the server cannot be started: %s", error)
            return None
        logger.info("the server is process %d%s", process.pid, ", prepared before" if prepared else "")
        return process

    def _ends(self, process: Process) -> bool:
        """Wait for the server's end. False: it was stopped, as this process was asked to."""
        self._keep_successor()
        self._due[self._prepare] = time.monotonic() + PREPARE_SECONDS
        while not self._is_stopping:
            for start in [each for each, at in self._due.items() if at <= time.monotonic()]:
                del self._due[start]
                start()
            first = min(self._due.values(), default=None)
            seconds = None if first is None else first - time.monotonic()
            ended = wait_for_any([process, *self._others()], seconds, self._wake)
            if process in ended:
                return True
            self._replace(ended)
            self._drain()
        logger.info("stopping the server (process %d)", process.pid)
        process.stop(STOP_SECONDS)
        return False

    def _others(self) -> list[Process]:
        """Return the processes beside the server that run."""
        prepared = self._prepared.process if self._prepared is not None else None
        return [each for each in (self._successor.process, prepared) if each is not None]

    def _replace(self, ended: list[Process]) -> None:
        """Start a successor again that has ended. A prepared server that has is not replaced."""
        if self._prepared is not None and self._prepared.process in ended:
            self._prepared.close()
            self._prepared = None
        if self._successor.process in ended:
            assert self._successor.process is not None, "It has ended."
            pause = self._successor.note_death(self._successor.process.age_seconds)
            self._successor.process = None
            self._due[self._keep_successor] = time.monotonic() + pause

    def _keep_successor(self) -> None:
        if self._successor.process is not None:
            return
        role, kept = SUCCESSOR, ()
        if self._prepared is not None:
            role, kept = f"{SUCCESSOR}={self._prepared.handle}", (self._prepared.pipe,)
        try:
            self._successor.start(supervisor_command(self._home, self._command, role), keep=kept)
        except OSError as error:
            logger.error("the supervisor's successor cannot be started: %s", error)
            self._successor.process = None
            self._due[self._keep_successor] = time.monotonic() + self._successor.backoff.longest_seconds

    def _prepare(self) -> None:
        if self._prepared is not None:
            return
        try:
            self._prepared = PreparedServer.start(self._command, self._child)
        except OSError as error:
            logger.error("no server can be prepared: %s", error)
            return
        self._hand_on()

    def _hand_on(self) -> None:
        """Start another successor, which can use the prepared server, before the one that cannot is ended."""
        before, self._successor.process = self._successor.process, None
        self._keep_successor()
        if before is None:
            return
        if (
            self._successor.process is None
        ):  # as without memory: the one that waits already is better than none
            self._successor.process = before
        else:
            before.stop(STOP_SECONDS)

    def _end_others(self) -> None:
        """End the successor first: it would take this process's place."""
        if self._successor.process is not None:
            self._successor.process.stop(STOP_SECONDS)
        if self._prepared is not None:
            self._prepared.close()

    def _ended_well(self, process: Process) -> bool:
        """Return whether it ended on request. Only its note tells when the server was adopted."""
        is_well = process.exit_code == 0
        if process.exit_code is None:
            is_well = self._has_noted_its_end({"pid": process.pid, "began": process.began})
        if is_well:
            logger.info("the server (process %d) ended on request", process.pid)
        return is_well

    def _has_noted_its_end(self, server: Mapping[str, object]) -> bool:
        """Return whether the server with this `pid` and `began` noted that it ended on request."""
        try:
            note: object = json.loads(ended_file(self._home).read_text())
        except (OSError, ValueError):
            return False
        return note == {name: server.get(name) for name in ("pid", "began")}

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
    role, _, handle = sys.argv[1].partition("=")
    is_successor = role == SUCCESSOR
    home, *command = sys.argv[2 if is_successor else 1 :]
    set_up_logging("info", "text")
    prepared = PreparedServer.handed(handle)
    lock = os.open(Path(home) / "supervisor.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_alone = _has_lock(lock)
    if not is_alone and not is_successor:
        logger.error("another supervisor runs on %s", home)
        return 1
    if not is_alone:
        fcntl.flock(lock, fcntl.LOCK_EX)
        logger.warning("the supervisor has died; its successor (process %d) continues", os.getpid())
    if is_successor:
        supervisor_child(Path(home)).record_own_process()
    # One that is started by the words that a successor had takes nothing over.
    Supervisor(Path(home), command, takes_over=not is_alone, prepared=prepared).run()
    return 0


def _has_lock(lock: int) -> bool:
    """Take the lock that a supervisor holds until it ends, where nobody holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
