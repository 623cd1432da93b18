"""Runs many copies and deletions in parallel: shows progress, reports what failed, and stops cleanly.

A failure of one does not end the others, until there are too many. When the command is interrupted, nothing
new begins, what runs is given up, and unfinished uploads are removed before this returns.
"""

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from neocloud.cli.output import console, warn_of_error
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.storage.copier import Copier, Pair, Stopped
from neocloud.cli.storage.places import UnsafeKey
from neocloud.client.errors import ClientError

WORKERS = 8
MOST_FAILURES = 20
"""After so many, nothing more is tried: the rest would fail likewise."""
WAIT_SECONDS = 0.2
"""How long a signal may wait for the main thread."""


@dataclass
class Outcome:
    copied: int = 0
    copied_bytes: int = 0
    unchanged: int = 0
    deleted: int = 0
    failures: list[str] = field(default_factory=list[str])
    codes: set[str] = field(default_factory=set[str])
    is_given_up: bool = False

    def fail(self, what: str, error: Exception) -> None:
        message = str(error) if isinstance(error, ClientError) else f"{what}: {_said(error)}"
        self.failures.append(message)
        self.codes.add(error.code if isinstance(error, ClientError) else "UNKNOWN")
        warn_of_error(message)


def _said(error: Exception) -> str:
    if isinstance(error, UnsafeKey):
        return f"the key {error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


class Meter:
    """Counts bytes from all threads, and shows them on a terminal."""

    def __init__(self, title: str, total: int | None) -> None:
        """A total that is not known is None."""
        self._lock = threading.Lock()
        self._title, self._total = title, total
        self._shown: tuple[Progress, TaskID] | None = None

    def count(self, number: int) -> None:
        with self._lock:
            if self._shown is not None:
                self._shown[0].advance(self._shown[1], number)

    @contextmanager
    def shown(self) -> Generator[None]:
        screen = console(sys.stderr)
        if not screen.is_terminal:
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=screen, transient=True) as progress:
            self._shown = progress, progress.add_task(self._title, total=self._total)
            yield
            with self._lock:
                self._shown = None


def copy_all(
    copier: Copier, pairs: Sequence[Pair], meter: Meter, outcome: Outcome, *, remove_source: bool = False
) -> None:
    """Copy each, and with `remove_source` remove what was copied from where it was."""

    def copy(pair: Pair) -> bool:
        is_copied = copier.copy(pair)
        if remove_source:
            copier.remove_source(pair.source)
        return is_copied

    def done(pair: Pair, is_copied: bool) -> None:
        if is_copied:
            outcome.copied += 1
            outcome.copied_bytes += pair.size
        else:
            outcome.unchanged += 1

    with stopped_by_signals(), meter.shown():
        try:
            _each(pairs, copy, done, lambda pair: copier.source.show(pair.source), outcome)
        except BaseException:
            copier.close(cancel=True)
            raise
        copier.close()


def _each(
    pairs: Sequence[Pair],
    work: Callable[[Pair], bool],
    done: Callable[[Pair, bool], None],
    show: Callable[[Pair], str],
    outcome: Outcome,
) -> None:
    """Work on all, a few at a time. An interruption lets the threads end with their transfers."""
    pool = ThreadPoolExecutor(WORKERS, "copy")
    rest, running = iter(pairs), dict[Future[bool], Pair]()
    try:
        while True:
            while len(running) < 2 * WORKERS and not outcome.is_given_up:
                pair = next(rest, None)
                if pair is None:
                    break
                running[pool.submit(work, pair)] = pair
            if not running:
                return
            for future in wait(running, WAIT_SECONDS, FIRST_COMPLETED).done:
                pair = running.pop(future)
                try:
                    done(pair, future.result())
                except (ClientError, OSError, UnsafeKey) as error:
                    outcome.fail(show(pair), error)
                    outcome.is_given_up = len(outcome.failures) >= MOST_FAILURES
                except Stopped:
                    outcome.is_given_up = True
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
