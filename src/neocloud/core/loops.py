"""Work that is repeated until it is cancelled: no error ends it, and the log says when it starts and stops
failing."""

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from neocloud.core.clock import Clock

logger = logging.getLogger(__name__)


class LoopErrors:
    """Logs what rounds of one loop raise, and lets the loop run on."""

    def __init__(self, problem: str, expected: tuple[type[Exception], ...] = ()) -> None:
        """`problem`: the beginning of the lines in the log, such as "Buckets could not be reported".
        Errors that are not `expected` are logged with a traceback."""
        self._problem, self._expected = problem, expected
        self._last = ""
        self.has_failed = False
        """Whether the newest round raised an error."""

    @contextmanager
    def kept(self) -> Generator[None]:
        """Run one round in the block. The same error is logged once until a round succeeds."""
        try:
            yield
        except Exception as error:  # the border of all loops
            self.has_failed, text = True, str(error) or type(error).__name__
            if text != self._last:
                is_known = isinstance(error, self._expected)
                level = logging.WARNING if is_known else logging.ERROR
                logger.log(level, "%s: %s", self._problem, text, exc_info=not is_known)
            self._last = text
            return
        if self.has_failed:
            logger.info("%s: this has ended", self._problem)
        self.has_failed, self._last = False, ""


async def every(
    seconds: float,
    work: Callable[[], Awaitable[object]],
    problem: str,
    clock: Clock,
    *,
    expected: tuple[type[Exception], ...] = (),
    is_first_now: bool = True,
) -> None:
    """Do the work every `seconds` until cancelled. `problem` and `expected` are those of `LoopErrors`."""
    errors = LoopErrors(problem, expected)
    if not is_first_now:
        await clock.sleep(seconds)
    while True:
        with errors.kept():
            await work()
        await clock.sleep(seconds)
