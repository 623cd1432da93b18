"""AIS-01: keys are remembered for seconds, minutes while nobody can be asked, and never kept."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.inference.v1 import AdmitResponse

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.authentication import Authenticator
from neocloud.model_gateway.control_plane import InvalidToken
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.testing.waiting import FakeClock

SETTINGS = GatewaySettings(Path("/nowhere"), "127.0.0.1:1")


class ControlPlane:
    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self.entry = {"good"}
        self.renew_until: datetime | None = None

    async def admit(self, token: str = "", *, proof: str = "") -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ControlPlaneUnavailable("away")
        if (token or proof[::-1]) not in self.entry:
            raise InvalidToken
        answer = AdmitResponse(subject_id="s", tenant_id="t", proof=proof or token[::-1])
        if token and self.renew_until is not None:
            answer.renew_until.FromDatetime(self.renew_until)
        return answer

    async def list_routes(self, version: str, wait_seconds: int) -> Any: ...

    async def report(self, items: Sequence[Any]) -> None: ...

    async def report_release(self, report: Any) -> None: ...

    async def issue_file_key(self, request: Any) -> Any: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


@pytest.fixture
def authenticator(plane: ControlPlane, clock: FakeClock) -> Authenticator:
    return Authenticator(plane, SETTINGS, clock)


async def status_of(authenticator: Authenticator, header: str) -> int:
    try:
        await authenticator.authenticate(header)
    except OpenAiError as error:
        assert "good" not in error.message
        return error.status
    return 200


async def test_many_requests_ask_once(authenticator: Authenticator, plane: ControlPlane) -> None:
    callers = await asyncio.gather(*(authenticator.authenticate("Bearer good") for _ in range(50)))
    assert {caller.tenant_id for caller in callers} == {"t"}
    await authenticator.authenticate("bearer good")
    assert plane.asked == 1


async def test_a_revoked_key_ends_within_seconds(
    authenticator: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    assert await status_of(authenticator, "Bearer good") == 200
    plane.entry.clear()
    await clock.advance(SETTINGS.admit_seconds + 0.1)
    assert await status_of(authenticator, "Bearer good") == 401


async def test_it_asks_early_so_that_nobody_waits(
    authenticator: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    await authenticator.authenticate("Bearer good")
    await clock.advance(SETTINGS.admit_seconds * 0.6)
    await authenticator.authenticate("Bearer good")
    while plane.asked < 2 or authenticator._callers._questions:
        await asyncio.sleep(0)
    await clock.advance(SETTINGS.admit_seconds * 0.6)  # more than its whole time since the first answer
    plane.is_away = True
    assert await status_of(authenticator, "Bearer good") == 200


async def test_the_last_word_holds_for_minutes_while_nobody_can_be_asked(
    authenticator: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    await authenticator.authenticate("Bearer good")
    plane.is_away = True
    await clock.advance(SETTINGS.admit_away_seconds - 1)
    assert await status_of(authenticator, "Bearer good") == 200
    assert await status_of(authenticator, "Bearer other") == 503
    await clock.advance(2)
    assert await status_of(authenticator, "Bearer good") == 503
    plane.is_away = False
    assert await status_of(authenticator, "Bearer good") == 200


@pytest.fixture
async def renewing(authenticator: Authenticator, clock: FakeClock) -> AsyncIterator[Authenticator]:
    """The loop that asks again about callers that pause runs."""
    loop = asyncio.create_task(authenticator.renew_periodically())
    yield authenticator
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def pause(clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_caller_that_pauses_does_not_wait_when_it_comes_back(
    renewing: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    plane.renew_until = clock.now() + timedelta(hours=1)
    await renewing.authenticate("Bearer good")
    await pause(clock, 60)
    asked = plane.asked
    assert await status_of(renewing, "Bearer good") == 200
    assert plane.asked == asked <= 1 + 60 / (SETTINGS.admit_seconds * 0.7)


async def test_a_key_that_is_revoked_in_a_pause_ends_within_seconds(
    renewing: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    plane.renew_until = clock.now() + timedelta(hours=1)
    await renewing.authenticate("Bearer good")
    await pause(clock, 30)
    plane.entry.clear()
    await pause(clock, int(SETTINGS.admit_seconds) + 1)
    assert await status_of(renewing, "Bearer good") == 401


async def test_the_proof_does_not_outlive_the_token(
    renewing: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    """Work by proof may continue when the token ends; a request with the token may not."""
    plane.renew_until = clock.now() + timedelta(seconds=30)
    await renewing.authenticate("Bearer good")
    await pause(clock, 30)
    asked, plane.entry = plane.asked, {"of others"}
    assert await status_of(renewing, "Bearer good") == 401 and plane.asked == asked + 1


async def test_without_a_time_the_token_is_asked_for(
    renewing: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    """A control plane of an earlier release does not say when the token ends."""
    await renewing.authenticate("Bearer good")
    await pause(clock, 30)
    assert plane.asked == 1


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic good", "good", "Bearer " + "x" * 20_000])
async def test_no_key_is_401_without_asking(
    authenticator: Authenticator, plane: ControlPlane, header: str
) -> None:
    assert await status_of(authenticator, header) == 401
    assert plane.asked == 0


async def test_a_wrong_key_is_not_asked_for_each_time(
    authenticator: Authenticator, plane: ControlPlane, clock: FakeClock
) -> None:
    for _ in range(5):
        assert await status_of(authenticator, "Bearer bad") == 401
    assert plane.asked == 1
    plane.entry.add("bad")
    await clock.advance(2.1)
    assert await status_of(authenticator, "Bearer bad") == 200


async def test_tokens_are_not_kept(authenticator: Authenticator) -> None:
    await authenticator.authenticate("Bearer good")
    assert "good" not in repr(vars(authenticator)) + repr(vars(authenticator._callers))
