# pyright: strict
"""Share one run of a job among concurrent callers."""

import asyncio
from collections.abc import Awaitable, Callable


class SingleFlight:
    """Each call waits for a run that began after the call; calls that wait at the same time share a run."""

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._job = job
        self._lock = asyncio.Lock()
        self._requested = 0
        self._completed = 0

    async def __call__(self) -> None:
        self._requested += 1
        mine = self._requested
        async with self._lock:
            if self._completed >= mine:
                return
            covered = self._requested
            await self._job()
            self._completed = covered
