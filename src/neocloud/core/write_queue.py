"""A queue of writes that one thread takes in groups, so that one flush of the disk serves all that wait.

How a group is run is up to the database; what each write returned or raised is delivered to its own caller,
in the event loop that it called from.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

LARGEST_GROUP = 256

Work = TypeVar("Work")


@dataclass(frozen=True)
class WriteOutcome:
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class _Job(Generic[Work]):
    work: Work
    future: asyncio.Future[Any]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.future.get_loop()


class WriteQueue(Generic[Work]):
    """`start` it before `submit`, `stop` it at the end. `run` is called in the thread with up to
    LARGEST_GROUP writes, and returns one outcome for each."""

    def __init__(self, run: Callable[[Sequence[Work]], Sequence[WriteOutcome]], name: str) -> None:
        self._run = run
        self._name = name
        self._waiting: queue.SimpleQueue[_Job[Work] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

    async def submit(self, work: Work) -> Any:
        """Return what `work` returned, after its commit.

        A write whose caller is cancelled before its turn is left out; later, it is committed anyway.
        """
        assert self.is_open, "the queue was stopped"
        future = asyncio.get_running_loop().create_future()
        self._waiting.put(_Job(work, future))
        return await future

    async def stop(self) -> None:
        """Return when everything submitted so far is committed or refused."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        is_open = True
        while is_open:
            jobs, is_open = self._next_group()
            try:
                outcomes = self._run([job.work for job in jobs]) if jobs else ()
            except Exception as error:  # noqa: BLE001 - the thread must survive, and every caller must get a result
                outcomes = [WriteOutcome(error=error)] * len(jobs)
            _deliver(jobs, outcomes)

    def _next_group(self) -> tuple[list[_Job[Work]], bool]:
        """Wait for one job, then take along all others that wait; False after the last one."""
        jobs: list[_Job[Work]] = []
        job = self._waiting.get()
        while job is not None:
            if not job.future.cancelled():
                jobs.append(job)
            if len(jobs) == LARGEST_GROUP:
                break
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
        return jobs, job is not None


def _deliver(jobs: Sequence[_Job[Any]], outcomes: Sequence[WriteOutcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job[Any], WriteOutcome]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: Sequence[tuple[_Job[Any], WriteOutcome]]) -> None:
    for job, outcome in pairs:
        if job.future.cancelled():
            continue
        if outcome.error is not None:
            job.future.set_exception(outcome.error)
        else:
            job.future.set_result(outcome.result)
