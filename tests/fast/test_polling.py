"""Waiting for another process leaves the processors to it."""

import time

import pytest

from neocloud.testing import waiting
from neocloud.testing.waiting import wait_until


@pytest.mark.parametrize(("took", "pause"), [(0.0, 0.05), (0.2, 0.4), (30.0, 1.0)])
def test_a_slow_look_is_followed_by_a_longer_pause(
    took: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses, looks = [0.0], [], iter([False, False, True])

    def look() -> bool:
        now[0] += took
        return next(looks)

    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", pauses.append)
    assert wait_until(look, seconds=100)
    assert pauses == pytest.approx([pause, pause])


def test_a_pause_that_was_asked_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    looks = iter([False, True])
    monkeypatch.setattr(waiting.time, "sleep", pauses.append)
    assert wait_until(lambda: next(looks), poll_seconds=5.0)
    assert pauses == [5.0] and time.sleep == pauses.append
