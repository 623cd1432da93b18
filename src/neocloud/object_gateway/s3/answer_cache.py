# pyright: strict
"""Answers of the control plane about callers, and for how long they are used when it does not answer.

While it is heard, an answer is kept for its time, and dropped when the control plane says that access has
changed. While it is not heard, nothing says so. Then known answers are used for `stale_seconds` after it was
last heard: so long a right that was taken away may still count. Where nothing listens at its address, nobody
can take rights away either, and they are used for `down_seconds`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from neocloud.core.clock import Clock
from neocloud.object_gateway.access import ControlPlaneUnavailable
from neocloud.object_gateway.s3.errors import from_away

HEARD_SECONDS = 30.0
"""The long poll is answered within 20 s. One that was not heard for this long is asked about each request."""
MAX_KNOWN = 20_000
logger = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class Contact:
    """When the control plane was last heard: when it last said whether access had changed."""

    def __init__(self, clock: Clock, stale_seconds: float, down_seconds: float) -> None:
        self.clock = clock
        self._stale_seconds, self._down_seconds = stale_seconds, down_seconds
        self._heard_at = clock.monotonic()
        self._is_silent = False

    def heard(self) -> None:
        self._heard_at = self.clock.monotonic()
        self._is_silent = False

    def note_silence(self, error: ControlPlaneUnavailable) -> None:
        if not self._is_silent:
            logger.warning("The control plane did not answer a question about a caller: %s", error)
        self._is_silent = True

    @property
    def is_fresh(self) -> bool:
        return self._age <= min(HEARD_SECONDS, self._stale_seconds)

    def is_known_enough(self, error: ControlPlaneUnavailable) -> bool:
        """Return whether what was known when it was last heard may be used now."""
        return self._age < (self._down_seconds if error.is_down else self._stale_seconds)

    @property
    def _age(self) -> float:
        return self.clock.monotonic() - self._heard_at


class Remembered(Generic[_Value]):
    """Answers, each asked for once at a time."""

    def __init__(self, contact: Contact, seconds: float) -> None:
        self._contact = contact
        self._clock = contact.clock
        self._seconds = seconds
        self._known: OrderedDict[Hashable, tuple[_Value, float]] = OrderedDict()
        """Value, and until when it is used without a question."""
        self._asking: dict[Hashable, asyncio.Task[_Value]] = {}
        self._epoch = 0

    def has(self, place: Hashable) -> bool:
        return place in self._known

    def get(self, place: Hashable) -> _Value | None:
        found = self._known.get(place)
        is_fresh = found is not None and self._clock.monotonic() < found[1] and self._contact.is_fresh
        return found[0] if found is not None and is_fresh else None

    def expire(self) -> None:
        """Ask again. What is known stays for the case that the control plane does not answer."""
        self._epoch += 1
        self._asking.clear()
        self._known = OrderedDict((place, (value, 0.0)) for place, (value, _) in self._known.items())

    async def find(
        self, place: Hashable, ask: Callable[[], Awaitable[_Value]], none_seconds: float
    ) -> _Value:
        """Raises S3Error where the control plane does not answer, and nothing is known that may be used."""
        found = self._known.get(place)
        if found is not None and self._clock.monotonic() < found[1] and self._contact.is_fresh:
            return found[0]
        task = self._asking.get(place)
        if task is None:
            task = self._asking[place] = asyncio.ensure_future(self._ask(place, ask, none_seconds))
            task.add_done_callback(lambda done: self._answered(place, done))
        try:
            return await asyncio.shield(task)
        except ControlPlaneUnavailable as error:
            self._contact.note_silence(error)
            if found is None or found[0] is None or not self._contact.is_known_enough(error):
                raise from_away(error) from error
            self._known.setdefault(place, found)
            return found[0]

    async def _ask(
        self, place: Hashable, ask: Callable[[], Awaitable[_Value]], none_seconds: float
    ) -> _Value:
        epoch = self._epoch
        value = await ask()
        seconds = none_seconds if value is None else self._seconds
        if epoch == self._epoch:  # else access changed meanwhile, and the answer may be of before
            self._known[place] = (value, self._clock.monotonic() + seconds)
            self._known.move_to_end(place)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return value

    def _answered(self, place: Hashable, task: "asyncio.Task[_Value]") -> None:
        if self._asking.get(place) is task:
            del self._asking[place]
        if not task.cancelled():
            task.exception()  # delivered to those who wait
