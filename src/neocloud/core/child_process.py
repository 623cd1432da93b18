# pyright: strict
"""Child processes: start one, find it again, wait until it is ready or ends, restart it, stop it.

A child runs in a session of its own, writes to a log file, and outlives its parent. A record file holds its
id, its start time and the boot of the machine, so that the next parent finds it, and another process that got
the same id later is never mistaken for it. Imports little: the supervisor of the server is a process of this
module and no more.
"""

import json
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from neocloud.core.osfiles import make_private_parents, write_file

logger = logging.getLogger(__name__)

LOG_LIMIT_BYTES = 20 * 1024 * 1024
KILL_SECONDS = 10.0
"""How long a process may take to end after SIGKILL; it may be inside a call to a slow disk."""
POLL_SECONDS = 0.05
_LONGEST_LINE = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTED_AT = 22 - 3
"""Of the fields of /proc/PID/stat that follow the program's name."""
_dropped: set[int] = set()
"""Children that nobody refers to any more; they are reaped when the next one starts."""


class Process:
    """A process, a child of this one or not. A pidfd refers to it, so that its id is never another's."""

    def __init__(self, pid: int, descriptor: int, began: int, *, is_child: bool = False) -> None:
        self.pid = pid
        self.began = began
        """When it started, in the kernel's own count; tells it from others that had the id."""
        self.exit_code: int | None = None
        """Of a child that has ended; negative: the signal that killed it. None: running, or not known."""
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
    ) -> "Process":
        """Start it in a session of its own, so that it outlives this process. Raises OSError, with nothing
        running. `stdin` is a descriptor to read from."""
        _reap_dropped()
        child = subprocess.Popen(
            arguments,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            umask=umask,
            start_new_session=True,
        )
        try:
            # Its id cannot be another's, even when it has ended: nobody has waited for it yet.
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


@dataclass(frozen=True)
class Backoff:
    """Pauses before restarts: doubled with each short life in a row."""

    first_seconds: float = 0.2
    longest_seconds: float = 10.0
    good_life_seconds: float = 60.0
    """After a life this long, the next restart has the shortest pause."""

    def pause(self, short_lives: int) -> float:
        """Return the pause after this many short lives, of which one may be the first after a long one."""
        doublings = min(max(short_lives - 1, 0), 30)
        return min(self.first_seconds * 2**doublings, self.longest_seconds)


@dataclass(frozen=True)
class Deaths:
    """How often a child died and was restarted since its first start, and why it died last."""

    restarts: int = 0
    short_lives: int = 0
    """Deaths in a row after less than a good life."""
    at: float = 0.0
    """Of the last one, in seconds since 1970; 0: it has not died."""
    why: str = ""
    said: str = ""
    """The last line that it wrote, where it ended by itself with an error."""


@dataclass
class Child:
    """A program of which at most one process runs. Use it under a lock that others take, too."""

    name: str
    """As in messages: "gateway"."""
    log_file: Path
    record_file: Path | None = None
    """None: the caller has another way to find the process again."""
    backoff: Backoff = field(default_factory=Backoff)
    process: Process | None = None
    deaths: Deaths = field(default_factory=Deaths)
    _log_begin: int = 0

    def record(self) -> dict[str, Any]:
        """Return what was recorded at the last start; empty when nothing was, or it cannot be read."""
        try:
            document: object = json.loads(self.record_file.read_text()) if self.record_file else {}
        except (OSError, ValueError):
            return {}
        return cast(dict[str, Any], document) if isinstance(document, dict) else {}

    def find(self) -> Process | None:
        """Return the recorded process; None when it has ended, even if another one has its id now."""
        record = self.record()
        if record.get("boot", boot_id()) != boot_id():  # records of earlier releases do not name the boot
            return None
        try:
            return Process.find(int(record.get("pid", 0)), int(record.get("began", 0)))
        except (TypeError, ValueError):
            return None

    def adopt(self, process: Process) -> None:
        """Go on with a process that an earlier parent started, and with its count of deaths."""
        self.process, self.deaths = process, deaths_in(self.record())

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        umask: int = -1,
        details: Mapping[str, object] | None = None,
    ) -> Process:
        """Start the program and record it, with `details` beside. Raises OSError, with nothing running.

        After a death it runs even if it cannot be recorded, as on a full disk.
        """
        with self.open_log() as output:
            process = Process.start(arguments, output, environment=environment, umask=umask)
        self.take(process, details)
        return process

    def open_log(self) -> IO[bytes]:
        """Open the log to append what the next process writes."""
        self.log_file.parent.mkdir(exist_ok=True, parents=True, mode=0o700)
        _rotate(self.log_file)
        output = _append(self.log_file)
        self._log_begin = output.tell()
        return output

    def take(self, process: Process, details: Mapping[str, object] | None = None) -> None:
        """Record a process that runs already as this child. Raises OSError, and stops it then.

        After a death it runs even if it cannot be recorded, as on a full disk.
        """
        self.process = process
        try:
            self._write(process, details or {})
        except OSError as error:
            if not self.deaths.restarts:
                process.stop(0)
                raise
            logger.error("the %s (process %d) runs, but is not recorded: %s", self.name, process.pid, error)
        except BaseException:
            process.stop(0)
            raise

    def record_own_process(self) -> None:
        """Record this process as the child. It goes on where that is not possible, as on a full disk."""
        self.process = Process.of(os.getpid())
        assert self.process is not None, "This process runs."
        try:
            self._write(self.process, {})
        except OSError as error:
            logger.error("the %s (process %d) runs, but is not recorded: %s", self.name, os.getpid(), error)

    def wait_until_ready(self, is_ready: Callable[[], bool], seconds: float) -> bool:
        """Block until it is ready. False: it has ended, or the time is up."""
        assert self.process is not None, "It has been started."
        deadline = time.monotonic() + seconds
        while not is_ready():
            if self.process.wait(POLL_SECONDS) or time.monotonic() > deadline:
                return False
        return True

    def output(self) -> str:
        """Return what it wrote since its last start."""
        with suppress(OSError), self.log_file.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")
        return ""

    def note_death(self, life_seconds: float, why: str = "") -> float:
        """Count and log a death of the process; return the seconds to wait before the next start."""
        assert self.process is not None, "It has been started."
        reason = why or self.process.why_ended
        is_short = life_seconds < self.backoff.good_life_seconds
        short_lives = self.deaths.short_lives + 1 if is_short else 1
        said = self._last_line() if (self.process.exit_code or 0) > 0 else ""
        self.deaths = Deaths(self.deaths.restarts + 1, short_lives, time.time(), reason, said)
        pause = self.backoff.pause(short_lives)
        logger.warning(
            "the %s (process %d) %s after %.1f s; restart %d in %g s%s",
            *(self.name, self.process.pid, reason, life_seconds, self.deaths.restarts, pause),
            f"; {short_lives} short lives in a row, see {self.log_file}" if short_lives > 2 else "",
        )
        self._record_deaths()
        return pause

    def note_end_unseen(self) -> None:
        """Count the death of a recorded process that ended while nothing watched it."""
        record = self.record()
        before, began_at = deaths_in(record), record.get("began")
        is_long = isinstance(began_at, int) and age_seconds(began_at) >= self.backoff.good_life_seconds
        why = "ended while its supervisor was dead"
        self.deaths = Deaths(before.restarts + 1, 1 if is_long else before.short_lives + 1, time.time(), why)
        logger.warning("the %s %s; restart %d", self.name, why, self.deaths.restarts)
        self._record_deaths()

    def _record_deaths(self) -> None:
        if self.record_file is not None:
            with suppress(OSError):  # a full disk must not keep it from being restarted
                write_file(self.record_file, json.dumps(self.record() | {"deaths": asdict(self.deaths)}))

    def _last_line(self) -> str:
        with suppress(OSError), self.log_file.open("rb") as log:
            log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - _LONGEST_LINE))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            return lines[-1] if lines else ""
        return ""

    def _write(self, process: Process, details: Mapping[str, object]) -> None:
        if self.record_file is None:
            return
        make_private_parents(self.record_file)
        identity = {"pid": process.pid, "began": process.began, "boot": boot_id()}
        record = {**identity, **details, "deaths": asdict(self.deaths)}
        write_file(self.record_file, json.dumps(record, indent=2))


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


def deaths_in(record: Mapping[str, Any]) -> Deaths:
    """Return the deaths that a record tells of; none where it is of an earlier version, or damaged."""
    try:
        return Deaths(**record["deaths"])
    except (KeyError, TypeError):
        return Deaths()


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


def _append(log_file: Path) -> IO[bytes]:
    return os.fdopen(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _rotate(log_file: Path) -> None:
    if log_file.exists() and log_file.stat().st_size > LOG_LIMIT_BYTES:
        log_file.replace(log_file.with_suffix(".log.1"))
