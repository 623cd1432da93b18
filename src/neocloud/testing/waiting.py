"""Wait for a condition with a deadline, and say what was last seen when it does not come true.

`until` waits in an event loop, `wait_until` in a thread. Both poll: use them for what another process or a
double does. A control plane in this process says when it has changed something, see `tests/control_plane.py`.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

Seen = TypeVar("Seen")

DEADLINE_SECONDS = 60.0


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
    """The same for a thread. A `what` that is a function is called when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if holds(seen):
            return seen
        _check(deadline, seconds, what, seen)
        time.sleep(poll_seconds)


def _check(deadline: float, seconds: float, what: str | Callable[[], str], seen: object) -> None:
    if time.monotonic() > deadline:
        name = what if isinstance(what, str) else what()
        raise AssertionError(f"{name}: not so after {seconds:g} s; last seen: {seen!r}")
