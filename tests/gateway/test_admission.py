"""AIS-01, AIS-03: keys are remembered for seconds, minutes while nobody can be asked, and never kept."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.gateway.admission import Admission
from neocloud.gateway.control_plane import ControlPlaneAway, TokenRefused
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.settings import GatewaySettings
from neocloud.testing.clock import FakeClock

SETTINGS = GatewaySettings(Path("/nowhere"), "127.0.0.1:1")


class ControlPlane:
    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self.known = {"good"}

    async def admit(self, token: str = "", *, proof: str = "") -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ControlPlaneAway("away")
        if token not in self.known:
            raise TokenRefused
        return contract.message("neocloud.inference.v1.AdmitResponse")(subject_id="s", tenant_id="t")

    async def list_routes(self, version: str, wait_seconds: int) -> Any: ...

    async def report(self, items: Sequence[Any]) -> None: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


@pytest.fixture
def admission(plane: ControlPlane, clock: FakeClock) -> Admission:
    return Admission(plane, SETTINGS, clock)


async def status_of(admission: Admission, header: str) -> int:
    try:
        await admission.caller(header)
    except OpenAiError as error:
        assert "good" not in error.message
        return error.status
    return 200


async def test_many_requests_ask_once(admission: Admission, plane: ControlPlane) -> None:
    callers = await asyncio.gather(*(admission.caller("Bearer good") for _ in range(50)))
    assert {caller.tenant_id for caller in callers} == {"t"}
    await admission.caller("bearer good")
    assert plane.asked == 1


async def test_a_revoked_key_ends_within_seconds(
    admission: Admission, plane: ControlPlane, clock: FakeClock
) -> None:
    assert await status_of(admission, "Bearer good") == 200
    plane.known.clear()
    await clock.advance(SETTINGS.admit_seconds + 0.1)
    assert await status_of(admission, "Bearer good") == 401


async def test_it_asks_early_so_that_nobody_waits(
    admission: Admission, plane: ControlPlane, clock: FakeClock
) -> None:
    await admission.caller("Bearer good")
    await clock.advance(SETTINGS.admit_seconds * 0.6)
    await admission.caller("Bearer good")
    while plane.asked < 2 or admission._asking:
        await asyncio.sleep(0)
    await clock.advance(SETTINGS.admit_seconds * 0.6)  # more than its whole time since the first answer
    plane.is_away = True
    assert await status_of(admission, "Bearer good") == 200


async def test_the_last_word_holds_for_minutes_while_nobody_can_be_asked(
    admission: Admission, plane: ControlPlane, clock: FakeClock
) -> None:
    await admission.caller("Bearer good")
    plane.is_away = True
    await clock.advance(SETTINGS.admit_away_seconds - 1)
    assert await status_of(admission, "Bearer good") == 200
    assert await status_of(admission, "Bearer other") == 503
    await clock.advance(2)
    assert await status_of(admission, "Bearer good") == 503
    plane.is_away = False
    assert await status_of(admission, "Bearer good") == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic good", "good", "Bearer " + "x" * 20_000])
async def test_no_key_is_401_without_asking(admission: Admission, plane: ControlPlane, header: str) -> None:
    assert await status_of(admission, header) == 401
    assert plane.asked == 0


async def test_a_wrong_key_is_not_asked_for_each_time(
    admission: Admission, plane: ControlPlane, clock: FakeClock
) -> None:
    for _ in range(5):
        assert await status_of(admission, "Bearer bad") == 401
    assert plane.asked == 1
    plane.known.add("bad")
    await clock.advance(2.1)
    assert await status_of(admission, "Bearer bad") == 200


async def test_tokens_are_not_kept(admission: Admission) -> None:
    await admission.caller("Bearer good")
    assert "good" not in repr(vars(admission))
