"""Answers about callers: asked for once, kept for their time, and used for no longer than allowed."""

import asyncio
import logging

import pytest

from neocloud.data_plane.answer_cache import (
    MAX_RENEWED,
    AnswerAge,
    AnswerCache,
    AnswerTimes,
    SilenceAge,
    Staleness,
    TooManyQuestions,
)
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable
from neocloud.testing.waiting import FakeClock

TIMES = AnswerTimes(10.0, 2.0, early_seconds=5.0, known_wait_seconds=1.0, max_questions=2)
AWAY = AnswerAge(300.0)


class Asked:
    """A cache, and what the control plane answers about "key"."""

    def __init__(self, times: AnswerTimes = TIMES, staleness: Staleness = AWAY) -> None:
        self.clock = FakeClock()
        away = AwayLog(logging.getLogger("tests"), "known callers continue")
        self.cache = AnswerCache[str, str](self.clock, staleness, times, away)
        self.answer: str | None = "right"
        self.is_away = False
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self) -> str | None:
        self.count += 1
        answer, is_away = self.answer, self.is_away  # as of the question
        await self.gate.wait()
        if is_away:
            raise ControlPlaneUnavailable("away")
        return answer

    async def find(self, key: str = "key") -> str | None:
        return await self.cache.find(key, self.ask)


async def test_an_answer_to_a_question_of_before_a_change_is_not_kept() -> None:
    asked = Asked()
    asked.gate.clear()
    before = asyncio.create_task(asked.find())
    while not asked.count:
        await asyncio.sleep(0)
    asked.cache.expire()
    asked.answer = None
    asked.gate.set()
    assert await before == "right"
    assert await asked.find() is None and asked.count == 2


async def test_a_right_that_ended_is_not_taken_up_again_by_a_question_that_fails_late() -> None:
    asked = Asked()
    assert await asked.find() == "right"
    await asked.clock.advance(TIMES.seconds)
    asked.is_away = True
    asked.gate.clear()
    late = asyncio.create_task(asked.find())
    while asked.count < 2:
        await asyncio.sleep(0)
    asked.cache.expire()

    async def gone() -> None:
        return None

    assert await asked.cache.find("key", gone) is None
    asked.gate.set()
    with pytest.raises(ControlPlaneUnavailable):
        await late


async def test_questions_about_unknown_keys_are_bounded_and_known_callers_do_not_notice() -> None:
    asked = Asked()
    assert await asked.find() == "right"
    asked.gate.clear()
    waiting = [asyncio.create_task(asked.find(key)) for key in ("a", "b")]
    while asked.count < 3:
        await asyncio.sleep(0)
    with pytest.raises(TooManyQuestions):
        await asked.find("c")
    await asked.clock.advance(6)  # a question would be asked early
    assert await asked.find() == "right"
    asked.gate.set()
    assert await asyncio.gather(*waiting) == ["right", "right"]


async def test_a_known_caller_does_not_wait_for_a_slow_control_plane() -> None:
    asked = Asked(AnswerTimes(10.0, 2.0, known_wait_seconds=0.01))
    assert await asked.find() == "right"
    await asked.clock.advance(11)
    asked.gate.clear()
    assert await asked.find() == "right"
    asked.gate.set()


def renewing(*, renewed_seconds: float = 300.0) -> Asked:
    return Asked(AnswerTimes(10.0, 2.0, renewed_seconds=renewed_seconds, max_questions=2))


async def test_an_answer_in_use_is_renewed_before_it_is_too_old_and_nobody_waits() -> None:
    asked = renewing()
    assert await asked.find() == "right" and asked.cache.due() == []
    for _ in range(20):
        await asked.clock.advance(8)
        assert asked.cache.due() == [("key", "right")]
        asked.cache.renew("key", asked.ask)
        assert asked.cache.due() == []  # it is being asked for
        while asked.cache._questions:
            await asyncio.sleep(0)
    assert asked.cache.get("key") == "right" and asked.count == 21


async def test_a_right_that_ended_ends_with_the_renewal() -> None:
    asked = renewing()
    await asked.find()
    await asked.clock.advance(8)
    asked.answer = None
    asked.cache.renew("key", asked.ask)
    while asked.cache._questions:
        await asyncio.sleep(0)
    assert await asked.find() is None and asked.count == 2 and asked.cache.due() == []


@pytest.mark.parametrize("seconds", [11.0, 301.0])
async def test_what_is_too_old_or_rests_is_not_renewed(seconds: float) -> None:
    """While the control plane is away, it is not asked over and over for nobody."""
    asked = renewing()
    await asked.find()
    await asked.clock.advance(seconds)
    assert asked.cache.due() == []
    await asked.clock.advance(-3)
    assert asked.cache.due() == []


async def test_renewals_do_not_prolong_the_time_for_which_there_are_renewals() -> None:
    asked = renewing(renewed_seconds=20.0)
    await asked.find()
    for _ in range(2):
        await asked.clock.advance(8)
        asked.cache.renew("key", asked.ask)
        while asked.cache._questions:
            await asyncio.sleep(0)
    await asked.clock.advance(8)
    assert asked.cache.due() == [] and asked.count == 3


async def test_only_the_answers_that_were_used_last_are_renewed() -> None:
    asked = renewing()
    for number in range(MAX_RENEWED + 5):
        await asked.find(str(number))
    await asked.find("5")
    await asked.find("another")
    await asked.clock.advance(8)
    due = [key for key, _ in asked.cache.due()]
    assert len(due) == MAX_RENEWED and due[-2:] == ["5", "another"] and "6" not in due


async def test_a_restored_answer_is_asked_for_and_counts_only_while_away() -> None:
    asked = Asked()
    asked.cache.restore("key", "earlier", 5.0)
    asked.is_away = True
    assert await asked.find() == "earlier" and asked.count == 1
    await asked.clock.advance(295)
    with pytest.raises(ControlPlaneUnavailable):
        await asked.find()
    asked.is_away = False
    assert await asked.find() == "right"


async def test_silence_is_logged_once_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    assert await asked.find() == "right"
    for _ in range(2):
        asked.is_away = True
        await asked.clock.advance(11)
        for _ in range(3):
            assert await asked.find() == "right"
        asked.is_away = False
        assert await asked.find() == "right"
    lines = [each.message for each in caplog.records if each.name == "tests"]
    assert lines == ["The control plane does not answer; known callers continue: away"] * 2


async def test_silence_counts_from_when_changes_were_last_heard_of() -> None:
    clock = FakeClock()
    silence = SilenceAge(clock, stale_seconds=60, down_seconds=600)
    silent, down = ControlPlaneUnavailable("silent"), ControlPlaneUnavailable("down", is_down=True)
    await clock.advance(59)
    assert silence.allows(10_000, silent) and not silence.is_fresh()
    await clock.advance(1)
    assert not silence.allows(0, silent) and silence.allows(0, down)
    await clock.advance(540)
    assert not silence.allows(0, down)
    silence.heard()
    assert silence.is_fresh() and silence.allows(0, silent)
