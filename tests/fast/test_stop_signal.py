"""A server stopped right after it announced itself stops in order, and leaves no file that says it runs."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane import lifecycle, state_dir
from neocloud.control_plane.composition import on_emulator
from neocloud.control_plane.server_supervisor import Supervisor, ended_file
from neocloud.core.process import Process, began
from neocloud.settings.settings import Settings


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
    assert json.loads(ended_file(tmp_path).read_text()) == {"pid": os.getpid(), "began": began(os.getpid())}


async def test_an_error_is_not_noted_as_an_end_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: Settings, **details: Any) -> None:
        settings.server_file.write_text("{}")
        raise ZeroDivisionError

    monkeypatch.setattr(state_dir, "announce", fail)
    settings = Settings(home=tmp_path, grpc_port=0, http_port=0, gateway_port=0, emulator=True)
    with pytest.RaisesGroup(ZeroDivisionError, allow_unwrapped=True, flatten_subgroups=True):
        await lifecycle.serve(on_emulator(settings), settings)
    assert not settings.server_file.exists() and not ended_file(tmp_path).exists()


@pytest.mark.parametrize("is_noted", [True, False])
def test_an_adopted_server_that_ends_without_a_note_is_started_again(tmp_path: Path, is_noted: bool) -> None:
    supervisor = Supervisor(tmp_path, [])
    ended = Process.find(os.getpid(), began(os.getpid()))
    assert ended is not None and ended.exit_code is None
    note = {"pid": ended.pid, "began": ended.began if is_noted else ended.began - 1}
    ended_file(tmp_path).write_text(json.dumps(note))
    assert supervisor._ended_well(ended) is is_noted
    ended_file(tmp_path).unlink()
    assert not supervisor._ended_well(ended)
