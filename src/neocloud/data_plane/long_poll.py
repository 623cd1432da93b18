"""Follows a list of the control plane: asks for another version, and applies each answer."""

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from neocloud.core.clock import Clock
from neocloud.core.loops import LoopErrors
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable

AWAY_SECONDS = 1.0
"""Between attempts while the control plane is away, or an answer cannot be applied."""
logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class LongPoll(Generic[_Answer]):
    def __init__(
        self,
        clock: Clock,
        noun: str,
        ask: Callable[[], Awaitable[_Answer]],
        apply: Callable[[_Answer], Awaitable[None]],
        *,
        away: AwayLog | None = None,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """`ask` waits for another version, for a bounded time, and raises ControlPlaneUnavailable. `noun` is
        a plural, for the log. Errors of `apply` that are `expected` are logged without a traceback. After
        an error `ask` has to return the whole list again."""
        self._clock, self._ask, self._apply = clock, ask, apply
        self._away, self._errors = away, LoopErrors(f"{noun} could not be applied", expected)
        self.is_connected = False
        """Whether the newest question was answered."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                answer = await self._ask()
            except ControlPlaneUnavailable as error:
                self._note_away(error)
                await self._clock.sleep(AWAY_SECONDS)
                continue
            self._note_answer()
            with self._errors.kept():
                await self._apply(answer)
            if self._errors.has_failed:
                await self._clock.sleep(AWAY_SECONDS)

    def _note_away(self, error: ControlPlaneUnavailable) -> None:
        self.is_connected = False
        if self._away is not None:
            self._away.note(error)

    def _note_answer(self) -> None:
        if self._away is not None:
            if not self.is_connected:
                logger.info("Connected to the control plane")
            self._away.answered()
        self.is_connected = True
