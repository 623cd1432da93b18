"""A long poll continues after everything: a control plane that is away, and unusable answers."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable
from neocloud.data_plane.long_poll import AWAY_SECONDS, LongPoll
from neocloud.testing.waiting import FakeClock, until


class Full(Exception):
    """An error that is expected."""


class Polled:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.answers: asyncio.Queue[str | Exception] = asyncio.Queue()
        self.fault: Exception | None = None
        self.applied: list[str] = []
        away = AwayLog(logging.getLogger("tests"), "what is known is served on")
        self.poll = LongPoll(self.clock, "Things", self._ask, self._apply, away=away, expected=(Full,))

    async def _ask(self) -> str:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _apply(self, answer: str) -> None:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.applied.append(answer)


@pytest.fixture
async def polled() -> AsyncIterator[Polled]:
    found = Polled()
    task = asyncio.create_task(found.poll.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_asks_again_while_the_control_plane_is_away(
    polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    polled.answers.put_nowait("first")
    await until(lambda: polled.applied == ["first"])
    assert polled.poll.is_connected
    for _ in range(3):
        polled.answers.put_nowait(ControlPlaneUnavailable("away"))
        await until(polled.answers.empty)
        await polled.clock.advance(AWAY_SECONDS)
        assert not polled.poll.is_connected
    polled.answers.put_nowait("second")
    await until(lambda: polled.applied == ["first", "second"])
    assert polled.poll.is_connected
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["The control plane does not answer; what is known is served on: away"]


@pytest.mark.parametrize(("fault", "has_traceback"), [(Full("no space"), False), (KeyError("x"), True)])
async def test_an_answer_that_cannot_be_applied_does_not_end_it(
    polled: Polled, caplog: pytest.LogCaptureFixture, fault: Exception, has_traceback: bool
) -> None:
    polled.fault = fault
    polled.answers.put_nowait("first")
    await until(lambda: polled.fault is None)
    polled.answers.put_nowait("second")
    await polled.clock.advance(AWAY_SECONDS)
    await until(lambda: polled.applied == ["second"])
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.message.startswith("Things") and bool(line.exc_info) is has_traceback
