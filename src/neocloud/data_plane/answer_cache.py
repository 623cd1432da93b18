"""Answers of the control plane about callers, and how long they are used, also while it does not answer.

An answer is used for its time without a question. After that the control plane is asked again. Where it does
not answer, a Staleness says whether what is known may still be used: so long a right that was taken away may
still count. An answer that something does not exist, None, is never used then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache

from neocloud.core.clock import Clock
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable

HEARD_SECONDS = 30.0
"""The long poll is answered within 20 s. One that was not heard for this long is asked about each request."""
RENEWED_SHARE = 0.7
"""An answer that is renewed is asked for again after so much of its time."""
MAX_RENEWED = 64
"""Answers that are renewed without a request: those that were used last."""
MAX_KNOWN = 20_000
"""Answers that are kept. Beyond that, those that were used longest ago are dropped."""
logger = logging.getLogger(__name__)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class TooManyQuestions(Exception):
    """The control plane is being asked so much that another question is not begun."""


class Staleness(Protocol):
    def is_fresh(self) -> bool:
        """Return whether an answer may be used for its time without a question."""
        ...

    def allows(self, age: float, error: ControlPlaneUnavailable) -> bool:
        """Return whether an answer of this age in seconds is used while the control plane does not answer."""
        ...


class AnswerAge:
    """For a control plane that does not say when access changes: what counts is the age of each answer."""

    def __init__(self, away_seconds: float) -> None:
        self._away_seconds = away_seconds

    def is_fresh(self) -> bool:
        return True

    def allows(self, age: float, error: ControlPlaneUnavailable) -> bool:
        return age < self._away_seconds


class SilenceAge:
    """For one that says when access changes: what counts is when it last said whether it had.

    While it is not heard, known answers are used for `stale_seconds` after it was last heard. Where nothing
    listens at its address, nobody can take rights away either, and they are used for `down_seconds`.
    """

    def __init__(self, clock: Clock, stale_seconds: float, down_seconds: float) -> None:
        self._monotonic = clock.monotonic
        self._stale_seconds, self._down_seconds = stale_seconds, down_seconds
        self._heard_at = clock.monotonic()

    def heard(self) -> None:
        self._heard_at = self._monotonic()

    def is_fresh(self) -> bool:
        return self._silent_seconds <= min(HEARD_SECONDS, self._stale_seconds)

    def allows(self, age: float, error: ControlPlaneUnavailable) -> bool:
        return self._silent_seconds < (self._down_seconds if error.is_down else self._stale_seconds)

    @property
    def _silent_seconds(self) -> float:
        return self._monotonic() - self._heard_at


@dataclass(frozen=True)
class AnswerTimes:
    seconds: float
    """How long an answer is used without a question."""
    unknown_seconds: float
    """The same of None."""
    early_seconds: float | None = None
    """The age at which the question is asked early, for the next request; this one does not wait."""
    known_wait_seconds: float | None = None
    """Something that is known waits no longer for a control plane that does not respond."""
    renewed_seconds: float | None = None
    """So long after it was last used, an answer is among those to be renewed, so that the next request does
    not wait either. It is used no longer for that."""
    max_questions: int | None = None
    """Questions at a time. A client that sends unknown keys cannot cause more."""


@dataclass(frozen=True, slots=True)
class _Known(Generic[_Value]):
    value: _Value | None
    asked_at: float
    epoch: int


class AnswerCache(Generic[_Key, _Value]):
    """Answers by what was asked about, each asked for once at a time."""

    def __init__(self, clock: Clock, staleness: Staleness, times: AnswerTimes, away: AwayLog) -> None:
        self._monotonic = clock.monotonic
        self._staleness, self._times, self._away = staleness, times, away
        self._known: LRUCache[_Key, _Known[_Value]] = LRUCache(MAX_KNOWN)
        self._questions: dict[_Key, asyncio.Task[_Value | None]] = {}
        self._used_at: dict[_Key, float] = {}
        """When a request last used the answers to be renewed, the newest at the end."""
        self._epoch = 0
        self.answer_count = 0
        """Answers that were kept since the start."""

    def has(self, key: _Key) -> bool:
        return key in self._known

    def get(self, key: _Key) -> _Value | None:
        """Return what may be used without a question."""
        found = self._known.get(key)
        return found.value if found is not None and self._is_fresh(found) else None

    def expire(self) -> None:
        """Ask again. Known answers are kept for the case that the control plane does not answer."""
        self._epoch += 1
        self._questions.clear()

    async def find(self, key: _Key, ask: Callable[[], Awaitable[_Value | None]]) -> _Value | None:
        """Return the answer. Raises ControlPlaneUnavailable where it does not come and nothing is known that
        may be used, and TooManyQuestions."""
        found = self._known.get(key)
        if found is not None and self._is_fresh(found):
            self._ask_early(key, found, ask)
            return self._used(key, found.value)
        late = ControlPlaneUnavailable(f"no answer within {self._times.known_wait_seconds} s")
        wait_seconds = self._times.known_wait_seconds if self._is_usable(found, late) else None
        try:
            async with asyncio.timeout(wait_seconds):
                return self._used(key, await asyncio.shield(self._question(key, ask)))
        except TimeoutError:
            error = late
        except ControlPlaneUnavailable as unavailable:
            error = unavailable
        self._away.note(error)
        newest = self._known.get(key, found)
        if newest is None or not self._is_usable(newest, error):
            raise error
        return newest.value

    def due(self) -> list[tuple[_Key, _Value]]:
        """Return what is to be renewed: in use and about to be too old. The rest waits for requests."""
        now, found = self._monotonic(), list[tuple[_Key, _Value]]()
        for key, used_at in list(self._used_at.items()):
            known = self._known.get(key)
            is_over = now - used_at > (self._times.renewed_seconds or 0.0)
            if is_over or known is None or known.value is None or not self._is_fresh(known):
                del self._used_at[key]
            elif now - known.asked_at >= RENEWED_SHARE * self._times.seconds and key not in self._questions:
                found.append((key, known.value))
        return found

    def renew(self, key: _Key, ask: Callable[[], Awaitable[_Value | None]]) -> None:
        """Ask for the next requests. Requests that come meanwhile wait for the same answer."""
        if key not in self._questions and not self._is_full():
            self._question(key, ask)

    def restore(self, key: _Key, value: _Value, age: float) -> None:
        """Know an answer of an earlier process. It is used only where the control plane does not answer."""
        self._known[key] = _Known(value, self._monotonic() - age, self._epoch - 1)

    def known(self) -> Iterator[tuple[_Key, _Value, float]]:
        """Yield what is known to exist: key, value and age in seconds."""
        now = self._monotonic()
        for key, found in self._known.items():
            if found.value is not None:
                yield key, found.value, now - found.asked_at

    def _is_fresh(self, found: _Known[_Value]) -> bool:
        seconds = self._times.unknown_seconds if found.value is None else self._times.seconds
        is_young = found.epoch == self._epoch and self._monotonic() - found.asked_at < seconds
        return is_young and self._staleness.is_fresh()

    def _is_usable(self, found: _Known[_Value] | None, error: ControlPlaneUnavailable) -> bool:
        """Return whether something is known that is used where the control plane does not answer."""
        if found is None or found.value is None:
            return False
        return self._staleness.allows(self._monotonic() - found.asked_at, error)

    def _ask_early(
        self, key: _Key, found: _Known[_Value], ask: Callable[[], Awaitable[_Value | None]]
    ) -> None:
        early = self._times.early_seconds
        if early is None or found.value is None or self._monotonic() - found.asked_at < early:
            return
        if key in self._questions or not self._is_full():
            self._question(key, ask)

    def _used(self, key: _Key, value: _Value | None) -> _Value | None:
        if self._times.renewed_seconds is not None and value is not None:
            self._used_at.pop(key, None)
            self._used_at[key] = self._monotonic()
            if len(self._used_at) > MAX_RENEWED:
                del self._used_at[next(iter(self._used_at))]
        return value

    def _is_full(self) -> bool:
        most = self._times.max_questions
        return most is not None and len(self._questions) >= most

    def _question(
        self, key: _Key, ask: Callable[[], Awaitable[_Value | None]]
    ) -> "asyncio.Task[_Value | None]":
        """Ask, or return the question in progress about the same."""
        task = self._questions.get(key)
        if task is None:
            if self._is_full():
                raise TooManyQuestions
            task = self._questions[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(lambda done: self._answered(key, done))
        return task

    async def _ask(self, key: _Key, ask: Callable[[], Awaitable[_Value | None]]) -> _Value | None:
        asked_at, epoch = self._monotonic(), self._epoch
        value = await ask()
        self._away.answered()
        if epoch == self._epoch:  # else access changed meanwhile, and the answer may be of before
            self._known[key] = _Known(value, asked_at, epoch)
            self.answer_count += 1
        return value

    def _answered(self, key: _Key, task: "asyncio.Task[_Value | None]") -> None:
        if self._questions.get(key) is task:
            del self._questions[key]
        if not task.cancelled():
            task.exception()  # those who wait get it; an early question has none
