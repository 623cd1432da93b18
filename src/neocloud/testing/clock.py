"""A clock that stands still until the test moves it, so that no test waits."""

import asyncio
import heapq
import inspect
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

_TURNS = 40
"""Turns of the event loop in which tasks settle; a turn costs microseconds."""


class FakeClock:
    """A `Clock`. Tasks that sleep on it run when `advance` or `run_until` reaches their time, in order."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._seconds = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._seconds + seconds, next(self._order), future))
        await future

    async def settle(self) -> None:
        """Let all tasks run until they wait for something."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let this much time pass; tasks that sleep wake at the right moment."""
        end = self._seconds + seconds
        await self.settle()
        while (wake_at := self._next_wake()) is not None and wake_at <= end:
            await self._jump(wake_at)
        self._seconds = end
        await self.settle()

    async def run_until(
        self, condition: Callable[[], bool | Awaitable[bool]], *, within: float = 60.0
    ) -> float:
        """Let time pass until this is true; says how many seconds that took.

        Raises AssertionError when it is not true within so many (fake) seconds, or nobody sleeps any more.
        """
        begin = self._seconds
        await self.settle()
        while not await _is_true(condition):
            wake_at = self._next_wake()
            if wake_at is None or wake_at > begin + within:
                raise AssertionError(f"{_name(condition)} is not true after {within:g} s.")
            await self._jump(wake_at)
        return self._seconds - begin

    async def _jump(self, to: float) -> None:
        self._seconds = max(self._seconds, to)
        while self._sleepers and self._sleepers[0][0] <= self._seconds:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
        await self.settle()

    def _next_wake(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


async def _is_true(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer


def _name(condition: object) -> str:
    return getattr(condition, "__name__", "The condition")
