"""Child processes: start one, find it again, wait until it is ready, count its deaths.

A child runs in a session of its own, writes to a log file, and outlives its parent. A record file holds its
id, its start time and the boot of the machine, so that the next parent finds it, and another process that got
the same id later is never mistaken for it. Imports little: the supervisor of the server is a process of this
module and no more.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from neocloud.core.cleanup import undo_on_error
from neocloud.core.json_values import as_object
from neocloud.core.osfiles import make_private_parents, write_file
from neocloud.core.process import Process, age_seconds, boot_id

logger = logging.getLogger(__name__)

LOG_LIMIT_BYTES = 20 * 1024 * 1024
POLL_SECONDS = 0.05
_LONGEST_LINE = 4096


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
    """Counts a child's deaths and restarts since its first start, with the reason of the last death."""

    restarts: int = 0
    short_lives: int = 0
    """Deaths in a row after less than a good life."""
    at: float = 0.0
    """Time of the last death, in seconds since 1970; 0: it has not died."""
    why: str = ""
    said: str = ""
    """The last line that it wrote, where it ended by itself with an error."""


@dataclass
class Child:
    """A program of which at most one process runs. Use it under a lock that others take, too."""

    name: str
    """The name in messages: "gateway"."""
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
        return as_object(document)

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
        """Continue with a process that an earlier parent started, and with its count of deaths."""
        self.process, self.deaths = process, deaths_in(self.record())

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        umask: int = -1,
        details: Mapping[str, object] | None = None,
        keep: Sequence[int] = (),
    ) -> Process:
        """Start the program and record it, with `details` beside. Raises OSError, with nothing running.

        It inherits the descriptors in `keep`.

        After a death it runs even if it cannot be recorded, as on a full disk.
        """
        with self.open_log() as output:
            process = Process.start(arguments, output, environment=environment, umask=umask, keep=keep)
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
        with undo_on_error(lambda: process.stop(0)):
            try:
                self._write(process, details or {})
            except OSError as error:
                if not self.deaths.restarts:
                    raise
                logger.error(
                    "the %s (process %d) runs, but is not recorded: %s", self.name, process.pid, error
                )

    def record_own_process(self) -> None:
        """Record this process as the child. It continues where that is not possible, as on a full disk."""
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


def deaths_in(record: Mapping[str, Any]) -> Deaths:
    """Return the deaths in a record; none where it is of an earlier version, or damaged."""
    try:
        return Deaths(**record["deaths"])
    except (KeyError, TypeError):
        return Deaths()


def _append(log_file: Path) -> IO[bytes]:
    return os.fdopen(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _rotate(log_file: Path) -> None:
    if log_file.exists() and log_file.stat().st_size > LOG_LIMIT_BYTES:
        log_file.replace(log_file.with_suffix(".log.1"))
