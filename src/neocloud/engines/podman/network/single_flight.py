"""A job that many ask for at once and that need run only once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable


class SingleFlight:
    """Whoever asks gets a run that began after the question; those who wait at the same time share one."""

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._job = job
        self._lock = asyncio.Lock()
        self._asked = 0
        self._answered = 0

    async def __call__(self) -> None:
        self._asked += 1
        mine = self._asked
        async with self._lock:
            if self._answered >= mine:
                return
            covered = self._asked
            await self._job()
            self._answered = covered
