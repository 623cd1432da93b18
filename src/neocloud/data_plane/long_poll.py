# pyright: strict
"""Follows a list of the control plane: asks for another version, and applies each answer."""

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from neocloud.core.clock import Clock
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
        self._clock, self._noun, self._ask, self._apply = clock, noun, ask, apply
        self._away, self._expected = away, expected
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
            try:
                await self._apply(answer)
            except self._expected as error:
                logger.warning("%s wait: %s", self._noun, error)
                await self._clock.sleep(AWAY_SECONDS)
            except Exception:  # the border of the loop: an error in one round must not end all rounds
                logger.exception("%s could not be applied", self._noun)
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
