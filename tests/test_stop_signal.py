"""A server stopped right after it announced itself stops in order, and leaves no file that says it runs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane import lifecycle, state_dir
from neocloud.control_plane.composition import on_emulator
from neocloud.control_plane.settings import Settings


@pytest.fixture
def survives_sigterm() -> Iterator[None]:
    """Without a handler, SIGTERM would end the test run instead of failing one test."""

    def refuse(*_: object) -> None:
        raise AssertionError("SIGTERM came before the server handled it")

    before = signal.signal(signal.SIGTERM, refuse)
    yield
    signal.signal(signal.SIGTERM, before)


async def test_a_signal_right_after_the_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives_sigterm: None
) -> None:
    announce = state_dir.announce

    def announce_and_be_stopped(settings: Settings, **details: Any) -> None:
        announce(settings, **details)
        assert settings.server_file.exists()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(state_dir, "announce", announce_and_be_stopped)
    settings = Settings(home=tmp_path, grpc_port=0, http_port=0, gateway_port=0, emulator=True)
    await lifecycle.serve(on_emulator(settings), settings)
    assert not settings.server_file.exists()
