"""Turns for compilations, with time that the test moves."""

import asyncio
from collections.abc import Coroutine

import pytest

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.compiled import turns
from neocloud.model_gateway.compiled.reading import Compiled
from neocloud.model_gateway.compiled.turns import CompilationTurns, Turn

Places = dict[str, "asyncio.Task[Turn | None]"]


class Desk:
    def __init__(self) -> None:
        self.now = 1000.0
        self.turns = CompilationTurns(lambda: self.now)

    async def take(
        self, subject: str, schema: str, *, is_batch: bool = False, weight: int = 0
    ) -> Turn | None:
        compiled = Compiled("structured_outputs", schema.encode(), weight)
        return await self.turns.take("bank", subject, compiled, _wait, is_batch=is_batch)

    def ask(
        self, subject: str, schema: str, *, is_batch: bool = False, weight: int = 0
    ) -> "asyncio.Task[Turn | None]":
        return asyncio.ensure_future(self.take(subject, schema, is_batch=is_batch, weight=weight))


async def _wait(change: Coroutine[None, None, None], seconds: float) -> None:
    """Wait without end: these tests move the clock themselves."""
    await change


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def given(place: "asyncio.Task[Turn | None]") -> Turn:
    turn = await asyncio.wait_for(place, 10)
    assert turn is not None
    return turn


async def test_one_caller_has_one_turn_and_a_deployment_two() -> None:
    desk = Desk()
    places = [desk.ask(subject, f"{subject}{n}") for subject in ("a", "b", "c") for n in range(3)]
    await settle()
    assert [place.done() for place in places] == [True, False, False, True, *[False] * 5]
    assert desk.turns.under_way("bank") == 2
    (await given(places[0])).answered(is_error=False)
    await settle()
    assert places[6].done(), "c had no turn yet"
    assert not places[1].done()
    for place in places:
        place.cancel()
    await asyncio.gather(*places, return_exceptions=True)


async def test_what_takes_long_leaves_one_turn_to_others() -> None:
    desk = Desk()
    places = [desk.ask(subject, subject, weight=9_900) for subject in ("a", "b")]
    light = [desk.ask(subject, subject) for subject in ("c", "d")]
    await settle()
    assert [place.done() for place in places + light] == [True, False, True, False]
    (await given(light[0])).answered(is_error=False)
    await settle()
    assert [place.done() for place in places + light] == [True, False, True, True]
    (await given(places[0])).answered(is_error=False)
    await settle()
    assert places[1].done()
    for place in (places[1], light[1]):
        (await given(place)).unused()


async def test_what_was_answered_once_needs_no_turn() -> None:
    desk = Desk()
    (await given(desk.ask("a", "schema"))).answered(is_error=False)
    assert await desk.take("a", "schema") is None
    assert await desk.take("b", "schema") is None
    assert await desk.turns.take("bank", "a", None, _wait, is_batch=False) is None
    desk.turns.forget("bank")
    assert await desk.take("a", "schema") is not None


async def test_those_that_wait_for_the_same_schema_go_on_together() -> None:
    desk = Desk()
    first = await given(desk.ask("a", "schema"))
    others = [desk.ask(subject, "schema") for subject in "aaab"]
    await settle()
    first.answered(is_error=False)
    assert (await asyncio.gather(*others[:3])) == [None] * 3
    others[3].cancel()


async def test_who_leaves_keeps_the_turn_while_the_model_server_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "BASE_SECONDS", 0.05)
    desk = Desk()
    await given(desk.ask("a", "x"))  # and never answered
    waiting = desk.ask("a", "y")
    await settle()
    assert not waiting.done()
    assert await given(waiting), "a turn has an end"


async def test_who_leaves_the_queue_leaves_room() -> None:
    desk = Desk()
    turn = await given(desk.ask("a", "x"))
    waiting = [desk.ask("a", f"{n}") for n in range(turns.MAX_WAITING_OF_CALLER)]
    await settle()
    with pytest.raises(OpenAiError) as caught:
        await desk.take("a", "one more")
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "5")
    for place in waiting:
        place.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    last = desk.ask("a", "one more")
    turn.unused()
    await given(last)


async def test_errors_of_the_model_server_make_a_caller_wait_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "COOLING_SECONDS", 0.01)
    desk = Desk()
    pauses: list[float] = []
    for number in range(4):
        (await given(desk.ask("a", f"bad {number}"))).answered(is_error=True)
        await asyncio.sleep(0.05)
        assert desk.turns.under_way("bank") == 0
        waiting = desk.ask("a", f"next {number}")
        other = desk.ask("b", f"good {number}")
        (await given(other)).answered(is_error=False)
        assert not waiting.done()
        waiting.cancel()
        await settle()
        before = desk.now
        desk.now = desk.turns._deployments["bank"].caller("a").pause_until  # pyright: ignore[reportPrivateUsage]
        pauses.append(desk.now - before)
    assert pauses == [5, 10, 20, 40]
    (await given(desk.ask("a", "bad"))).answered(is_error=True)
    with pytest.raises(OpenAiError) as caught:
        await desk.take("a", "next")
    assert caught.value.headers["Retry-After"] == "80"


async def test_a_failed_turn_goes_on_for_a_while() -> None:
    desk = Desk()
    (await given(desk.ask("a", "x"))).answered(is_error=True)
    assert desk.turns.under_way("bank") == 1
    assert (await given(desk.ask("b", "x"))) is not None, "what failed is not known"


async def test_batches_come_last() -> None:
    desk = Desk()
    first = await given(desk.ask("a", "x"))
    line = desk.ask("a", "line", is_batch=True)
    await settle()
    live = desk.ask("a", "live")
    await settle()
    first.answered(is_error=False)
    (await given(live)).answered(is_error=False)
    await given(line)


async def test_what_is_remembered_is_bounded() -> None:
    desk = Desk()
    for number in range(8):
        turn = await desk.take("a", f"{number}", weight=9000)
        assert turn is not None
        turn.answered(is_error=False)
    assert await desk.take("a", "7", weight=9000) is None
    assert await desk.take("a", "0", weight=9000) is not None
    desk.turns.keep_only(set())
    assert desk.turns.under_way("bank") == 1, "it is kept while it has turns"
