"""`neo up --emulator` to `neo down` by somebody without root, in processes of their own (issue: emulator)."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.second_account import Neo, folder, second_account

__all__ = ["folder"]


@pytest.fixture
def neo(folder: Path) -> Iterator[Neo]:
    call = second_account(folder)
    yield call
    call("down")


def test_it_starts_says_what_it_is_and_stops(neo: Neo, folder: Path) -> None:
    up = neo("up", "--emulator")
    assert up.returncode == 0, up.stderr
    assert "nothing real runs" in up.stdout
    variable = re.search(r"export NEOCLOUD_HOME=(\S+)", up.stdout)
    assert variable is not None
    home = Path(variable[1])
    assert home.parent == folder and home.stat().st_mode & 0o077 == 0

    report = json.loads(neo("status", "--output", "json").stdout)
    assert (report["state"], report["is_emulator"], report["engine"]["engine"]) == ("running", True, "fake")
    assert report["grpc"].startswith("127.0.0.1:")
    status = neo("status")
    assert "running, as an emulator" in status.stdout and "nothing real runs" in status.stderr

    down = neo("down")
    assert down.returncode == 0, down.stderr
    assert json.loads(neo("status", "--output", "json").stdout)["state"] == "stopped"


def test_state_is_there_again_after_down_and_up(neo: Neo, folder: Path) -> None:
    home = {"NEOCLOUD_HOME": str(folder / "cloud")}
    assert neo("up", "--emulator", "--emulator-gpus", "8xH100", **home).returncode == 0
    spec = ("--name", "data", "--type", "NETWORK_SSD", "--size-gibibytes", "1")
    made = neo("compute", "filesystem", "create", *spec, **home)
    assert made.returncode == 0, made.stderr
    neo("down", **home)
    assert neo("up", **home).returncode == 0, "an emulator stays one"
    engine = json.loads(neo("status", "--output", "json", **home).stdout)["engine"]
    (accelerators,) = engine["accelerators"]
    assert accelerators["count"] == 8
    found = json.loads(neo("compute", "filesystem", "list", "--output", "json", **home).stdout)
    assert [(each["metadata"]["name"], each["status"]["state"]) for each in found] == [("data", "READY")]
    neo("down", **home)


def test_a_server_that_is_killed_answers_again_at_the_same_address(neo: Neo, folder: Path) -> None:
    place = folder / "cloud"
    home = {"NEOCLOUD_HOME": str(place)}
    assert neo("up", "--emulator", **home).returncode == 0
    spec = ("--name", "data", "--type", "NETWORK_SSD", "--size-gibibytes", "1")
    assert neo("compute", "filesystem", "create", *spec, **home).returncode == 0
    before = json.loads((place / "server.json").read_text())
    supervisor = json.loads((place / "supervisor.json").read_text())["pid"]
    wait_until(lambda: (place / "successor.json").exists(), "the supervisor has a successor", seconds=60)
    os.kill(supervisor, signal.SIGKILL)
    os.kill(before["pid"], signal.SIGKILL)
    listed = neo("compute", "filesystem", "list", "--output", "json", **home)
    assert listed.returncode == 0, listed.stderr
    assert [each["metadata"]["name"] for each in json.loads(listed.stdout)] == ["data"]
    after = json.loads((place / "server.json").read_text())
    assert {**after, "pid": before["pid"]} == before
    assert after["pid"] != before["pid"]
    report = json.loads(neo("status", "--output", "json", **home).stdout)
    assert (report["is_supervised"], report["restarts"]["count"]) == (True, 1)
    assert report["restarts"]["last"]["why"].startswith("ended"), "its own supervisor did not see it"
    assert neo("destroy", "--yes", **home).returncode == 0
    assert not place.exists()
    assert not [line for line in _command_lines() if str(place).encode() in line]


def _command_lines() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes()


def test_the_folder_of_a_real_cloud_is_refused(neo: Neo, folder: Path) -> None:
    (folder / "real").mkdir()
    for name, content in (("neo.json", "{}"), ("credentials.json", "{}")):
        (folder / "real" / name).write_text(content)
    refused = neo("up", "--emulator", "--home", str(folder / "real"))
    assert refused.returncode != 0
    assert "holds a real cloud" in refused.stderr


def test_gpus_that_cannot_be_read_are_refused(neo: Neo, folder: Path) -> None:
    refused = neo("up", "--emulator-gpus", "lots", "--home", str(folder / "cloud"))
    assert refused.returncode != 0
    assert '"8xH100"' in refused.stderr


def test_faults_are_injected_shown_and_cleared(neo: Neo, folder: Path) -> None:
    neo("up", "--emulator")
    injected = neo("emulator", "fault", "inject", "quota-exceeded", "--calls", "FilesystemService/Create")
    assert injected.returncode == 0, injected.stderr
    spec = ("--name", "data", "--type", "NETWORK_SSD", "--size-gibibytes", "1")
    refused = neo("compute", "filesystem", "create", *spec)
    assert refused.returncode != 0 and "Injected by the emulator" in refused.stderr
    listed = json.loads(neo("emulator", "fault", "list", "--output", "json").stdout)
    assert [fault.get("calls_met") for fault in listed] == [1]
    assert neo("compute", "filesystem", "create", *spec).returncode == 0
    assert "Cleared 1." in neo("emulator", "fault", "clear").stdout
    neo("down")
