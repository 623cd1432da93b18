"""A command of this machine waits for a server that its supervisor is starting again."""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import grpc
import pytest

from neocloud.client.connection import (
    GET_OPERATION,
    RESTART_SECONDS,
    UNANSWERED_SECONDS,
    Client,
    live_endpoint,
    wait_for_restart,
)
from neocloud.client.credentials import StaticToken
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.control_plane.server_supervisor import server_child, supervisor_child
from neocloud.core.child_process import Child, Deaths

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Child]:
    made = supervisor_child(tmp_path)
    made.start(SLEEP)
    yield made
    end(made)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Child]:
    made = server_child(tmp_path)
    made.start(SLEEP)
    yield made
    end(made)


def end(child: Child) -> None:
    assert child.process is not None
    child.process.send(signal.SIGKILL)
    assert child.process.wait(60)


def announce(home: Path, server: Child) -> None:
    assert server.process is not None
    (home / "server.json").write_text(json.dumps({"pid": server.process.pid, "grpc": "127.0.0.1:7"}))


def never(_: float) -> None:
    raise AssertionError("it waits")


def test_it_waits_until_the_new_server_has_announced_itself(
    tmp_path: Path, supervisor: Child, server: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"pid": 1, "grpc": "127.0.0.1:6"}))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            announce(tmp_path, server)

    wait_for_restart(tmp_path, sleep, lambda: 0.0)
    assert len(pauses) == 3
    assert capsys.readouterr().err.count("waiting up to 60 s") == 1
    wait_for_restart(tmp_path, never)
    assert live_endpoint(Profile("default", "127.0.0.1:6", "", home=str(tmp_path))) == "127.0.0.1:7"


def test_it_gives_up_after_the_time_and_when_the_supervisor_ends(tmp_path: Path, supervisor: Child) -> None:
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += RESTART_SECONDS / 2

    wait_for_restart(tmp_path, sleep, lambda: now[0])
    assert now == [RESTART_SECONDS]
    wait_for_restart(tmp_path, lambda _: end(supervisor), lambda: 0.0)


def test_a_server_that_ends_again_and_again_is_not_waited_for(
    tmp_path: Path, supervisor: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    deaths = Deaths(5, 5, 0.0, "ended with exit code 1", "neocloud: Port 7370 is taken.")
    record = tmp_path / "server-process.json"
    record.write_text(json.dumps({"pid": 0, "began": 0, "deaths": asdict(deaths)}))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ClientError, match="5 times in a row.*: Port 7370 is taken") as raised:
        wait_for_restart(tmp_path, sleep, lambda: now[0])
    assert now[0] < 1, "the record of deaths is all that it takes"
    assert str(tmp_path / "log" / "server.log") in raised.value.next_step
    assert capsys.readouterr().err == ""
    killed = replace(deaths, why="was killed by SIGKILL", said="")
    record.write_text(json.dumps({"deaths": asdict(killed)}))
    wait_for_restart(tmp_path, sleep, lambda: now[0])
    assert now[0] >= RESTART_SECONDS, "one that is killed may start"


def record_deaths(server: Child, deaths: Deaths) -> None:
    """Record what the supervisor does when it starts this server after these deaths."""
    assert server.record_file is not None
    server.record_file.write_text(json.dumps(server.record() | {"deaths": asdict(deaths)}))


def test_a_slow_start_after_many_deaths_is_waited_for(
    tmp_path: Path, supervisor: Child, server: Child
) -> None:
    deaths = Deaths(5, 5, 0.0, "ended with exit code 1", "neocloud: Port 7370 is taken.")
    record_deaths(server, deaths)
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 1
        if now[0] == 10:
            announce(tmp_path, server)

    wait_for_restart(tmp_path, sleep, lambda: now[0])
    assert now[0] == 10, "it became ready"


def test_a_start_that_fails_once_more_is_said_when_it_does(
    tmp_path: Path, supervisor: Child, server: Child
) -> None:
    deaths = Deaths(5, 5, 0.0, "ended with exit code 1", "neocloud: Port 7370 is taken.")
    record_deaths(server, deaths)
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 1
        if now[0] == 4:
            end(server)
            record_deaths(server, replace(deaths, restarts=6, short_lives=6, at=7.0))

    with pytest.raises(ClientError, match="6 times in a row.*: Port 7370 is taken"):
        wait_for_restart(tmp_path, sleep, lambda: now[0])
    assert 4 <= now[0] < 7


def test_without_a_supervisor_it_fails_immediately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_for_restart(tmp_path, never)
    with pytest.raises(ClientError, match="is not running"):
        live_endpoint(Profile("default", "", "", home=str(tmp_path)))
    assert capsys.readouterr().err == ""


@dataclass
class Silent:
    """A server that does not answer some calls, and the time that passes meanwhile."""

    unanswered: int = 0
    now: float = 0.0

    def client(self, monkeypatch: pytest.MonkeyPatch) -> Client:
        def send(*_: object) -> str:
            if self.unanswered:
                self.unanswered -= 1
                raise ClientError("UNAVAILABLE", "Nothing answers", is_unanswered=True)
            return "answer"

        monkeypatch.setattr(Client, "_send", send)
        channel = grpc.insecure_channel("127.0.0.1:1")
        return Client(channel, "127.0.0.1:1", StaticToken("t"), self.sleep, lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_answered_before_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Silent()
    with server.client(monkeypatch) as client:
        assert client.call(GET_OPERATION) == "answer"
        server.unanswered = 5
        assert client.call(GET_OPERATION) == "answer"
        assert server.now == 5 * UNANSWERED_SECONDS
        assert capsys.readouterr().err.count("waiting up to 60 s") == 1
        server.unanswered = 10_000
        with pytest.raises(ClientError, match="Nothing answers"):
            client.call(GET_OPERATION)
        assert RESTART_SECONDS <= server.now <= RESTART_SECONDS + 10 * UNANSWERED_SECONDS


def test_one_that_never_answered_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Silent(unanswered=1)
    with server.client(monkeypatch) as client, pytest.raises(ClientError, match="Nothing answers"):
        client.call(GET_OPERATION)
    assert server.now == 0


def test_one_of_this_machine_is_waited_for_while_it_has_a_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, supervisor: Child
) -> None:
    server = Silent(unanswered=3)
    with server.client(monkeypatch) as client:
        client.home = tmp_path
        assert client.call(GET_OPERATION) == "answer"
        end(supervisor)
        server.unanswered = 1
        with pytest.raises(ClientError, match="Nothing answers"):
            client.call(GET_OPERATION)
