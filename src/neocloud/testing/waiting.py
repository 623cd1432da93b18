# pyright: standard
"""Time in tests: wait for a condition with a deadline, or move a clock that stands still.

`until` waits in an event loop, `wait_until` in a thread; both say what was last seen when the condition
does not come true. Both poll: use them for what another process or a double does. A control plane in this
process says when it has changed something, see `tests/control_plane.py`. On a `FakeClock` no test waits.
"""

import asyncio
import heapq
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar, overload

Seen = TypeVar("Seen")

DEADLINE_SECONDS = 60.0
_PAUSES = 2
"""How many times as long as a look the pause after it is, up to the longest."""
_LONGEST_PAUSE_SECONDS = 1.0
_TURNS = 40
"""Turns of the event loop in which tasks settle; a turn costs microseconds."""


@overload
async def until(
    look: Callable[[], Awaitable[Seen]],
    what: str = ...,
    *,
    holds: Callable[[Seen], object] = ...,
    seconds: float = ...,
    poll_seconds: float = ...,
) -> Seen: ...


@overload
async def until(
    look: Callable[[], Seen],
    what: str = ...,
    *,
    holds: Callable[[Seen], object] = ...,
    seconds: float = ...,
    poll_seconds: float = ...,
) -> Seen: ...


async def until(
    look: Callable[[], object],
    what: str = "the condition",
    *,
    holds: Callable[..., object] = bool,
    seconds: float = DEADLINE_SECONDS,
    poll_seconds: float = 0.01,
) -> object:
    """Return the first result of `look`, a function or coroutine function, that `holds`. Raises
    AssertionError when there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if holds(seen):
            return seen
        _check(deadline, seconds, what, seen)
        await asyncio.sleep(poll_seconds)


def wait_until(
    look: Callable[[], Seen],
    what: str | Callable[[], str] = "the condition",
    *,
    holds: Callable[[Seen], object] = bool,
    seconds: float = 60.0,
    poll_seconds: float = 0.05,
) -> Seen:
    """The same for a thread. A `what` that is a function is called when the deadline has passed.

    The pause after a slow look is longer: one by ssh takes as much of a processor as what it waits for.
    """
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        seen = look()
        if holds(seen):
            return seen
        _check(deadline, seconds, what, seen)
        took = time.monotonic() - begun
        time.sleep(max(poll_seconds, min(_PAUSES * took, _LONGEST_PAUSE_SECONDS)))


def _check(deadline: float, seconds: float, what: str | Callable[[], str], seen: object) -> None:
    if time.monotonic() > deadline:
        name = what if isinstance(what, str) else what()
        raise AssertionError(f"{name}: not so after {seconds:g} s; last seen: {seen!r}")


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
