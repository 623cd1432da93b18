"""Wait for a condition with a deadline, and say what was last seen when it does not come true."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

POLL_SECONDS = 0.1


def wait_until(look: Callable[[], Seen], what: str, *, seconds: float = 60.0) -> Seen:
    """The first true answer of `look`. Fails the test when none came in time."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not so after {seconds:g} s; last seen: {seen!r}"
        time.sleep(POLL_SECONDS)
