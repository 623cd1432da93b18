"""Follows a list of work of the control plane, such as transfers: starts, ends, forgets and reports it."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, Protocol, TypeVar

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.data_plane.long_poll import LongPoll
from neocloud.object_store.errors import ObjectStoreError, StoreUnavailable

WAIT_SECONDS = 20
REPORT_SECONDS = 10.0
STORE_SECONDS = 10.0
"""Between attempts while the object store fails."""
logger = logging.getLogger(__name__)


class Listed(Protocol):
    """The desired state of one piece of work."""

    @property
    def id(self) -> str: ...


_Work = TypeVar("_Work", bound=Listed)


class WorkReconciler(ABC, Generic[_Work]):
    """Runs one kind of work. The next start continues what was cancelled, from the subclass's records."""

    def __init__(self, clock: Clock, *, noun: str, reported_together: int) -> None:
        """`noun` is a plural, for the log. A report is bounded as a request is, so it has so many at most."""
        self._clock, self._noun, self._reported_together = clock, noun, reported_together
        self._version = ""
        self._known: dict[str, _Work] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._reporting = asyncio.Lock()

    @abstractmethod
    async def _list(self, version: str) -> tuple[str, Sequence[_Work]]:
        """Wait WAIT_SECONDS for another version, and return it. Raises ControlPlaneUnavailable."""

    @abstractmethod
    def _recorded(self) -> set[str]:
        """Return the ids of the work that is remembered from before."""

    @abstractmethod
    async def _apply(self, desired: _Work) -> None:
        """Start, stop or forget work that is not running now."""

    @abstractmethod
    async def _forget(self, work_id: str) -> None:
        """Forget work that is not listed any more."""

    @abstractmethod
    async def _report_some(self, ids: Sequence[str]) -> None:
        """Report these. Raises ControlPlaneUnavailable, ObjectStoreError."""

    async def run(self) -> None:
        """Follow and report until cancelled."""
        poll = LongPoll(self._clock, self._noun, lambda: self._list(self._version), self._take)
        problem, expected = f"{self._noun} could not be reported", (ObjectStoreError,)
        reporting = every(
            REPORT_SECONDS, self._report, problem, self._clock, expected=expected, is_first_now=False
        )
        loops = [asyncio.create_task(poll.run()), asyncio.create_task(reporting)]
        try:
            await asyncio.gather(*loops)
        finally:
            running = [*loops, *self._running.values()]
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _take(self, answer: tuple[str, Sequence[_Work]]) -> None:
        newest, listed = answer
        if newest == self._version:
            return
        self._version = ""  # unless all is applied
        try:
            await self._apply_all({each.id: each for each in listed})
            self._version = newest
        finally:
            await self._report()

    async def _apply_all(self, listed: dict[str, _Work]) -> None:
        for work_id in {*self._recorded(), *self._known} - listed.keys():
            await self._end(work_id)
            await self._forget(work_id)
            self._known.pop(work_id, None)
        changed = [each for each in listed.values() if self._known.get(each.id) != each]
        await asyncio.gather(*(self._apply_one(each) for each in changed))

    async def _apply_one(self, desired: _Work) -> None:
        await self._end(desired.id)
        await self._apply(desired)
        self._known[desired.id] = desired

    def _start(self, work_id: str, work: Callable[[], Coroutine[object, None, None]]) -> None:
        task = self._running[work_id] = asyncio.create_task(self._run_whole(work_id, work))
        task.add_done_callback(self._note_end)

    async def _run_whole(self, work_id: str, work: Callable[[], Coroutine[object, None, None]]) -> None:
        """Run work to its end; it is begun again where the store failed."""
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                logger.warning("%s: %s waits for the object store: %s", self._noun, work_id, error)
                await self._clock.sleep(STORE_SECONDS)

    async def _end(self, work_id: str) -> None:
        task = self._running.pop(work_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "One of the %s ended; it continues at the next start of the gateway"
            logger.error(text, self._noun.lower(), exc_info=error)

    async def _report(self) -> None:
        """Report all work. Results that cannot be reported now are part of the next report."""
        async with self._reporting:
            try:
                ids = sorted({*self._recorded(), *self._known})
                for start in range(0, len(ids), self._reported_together):
                    await self._report_some(ids[start : start + self._reported_together])
            except ControlPlaneUnavailable:
                pass  # the follower of buckets says so in the log
            except ObjectStoreError as error:
                logger.warning("%s could not be reported: %s", self._noun, error)
