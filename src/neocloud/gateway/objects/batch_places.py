"""How many lines of batches run at a time: what live requests leave, and at least one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOK_AGAIN_SECONDS = 0.1
"""Nobody tells when live requests become fewer."""


class Places:
    def __init__(self, most: int, live: Callable[[], int]) -> None:
        self._most = most
        self._live = live
        self._taken = 0
        self._turn = asyncio.Lock()
        """First come, first served."""
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        async with self._turn:
            while self._taken >= max(1, self._most - self._live()):
                self._freed.clear()
                try:
                    await asyncio.wait_for(self._freed.wait(), LOOK_AGAIN_SECONDS)
                except TimeoutError:
                    continue
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._freed.set()
