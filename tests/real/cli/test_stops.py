"""`neo status` of a stopped cloud: since when, and on whose request; or that it died."""

import json
import os
import pwd
import re
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.cli.machine.home import Home
from neocloud.cli.machine.stops import Stop, last_stop
from neocloud.control_plane.server_supervisor import server_child
from neocloud.testing.waiting import wait_until
from tests.fast.cli.conftest import Neo
from tests.real.cli.test_machine import FREE_PORTS, kill_supervisors, machine, processes_of, running

__all__ = ["machine"]


def test_a_cloud_that_was_stopped_says_when_by_whom_and_with_what(
    neo: Neo, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setattr("sys.argv", ["/usr/bin/neo", "down", "--home", "postgresql://ann:secret@db"])
    neo("up", *FREE_PORTS)
    assert json.loads(neo("status", "-o", "json").out)["stopped"] == {}
    before = datetime.now(UTC)
    neo("down")
    after = datetime.now(UTC)
    ran = neo("status")
    account = pwd.getpwuid(os.getuid()).pw_name
    assert re.search(rf"Stopped by +ann \(as {account}\), with `neo down`\n", ran.out), ran.out
    stopped = json.loads(neo("status", "-o", "json").out)["stopped"]
    assert before <= datetime.fromisoformat(stopped["at"]) <= after
    assert f"Since          {stopped['at'][:10]} {stopped['at'][11:19]} UTC\n" in ran.out
    neo("down")
    assert json.loads(neo("status", "-o", "json").out)["stopped"] == stopped, "it stopped nothing"


def test_a_cloud_that_was_ended_by_a_signal_was_not_stopped_by_neo(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    neo("down")
    neo("up")
    pid = running(machine).pid
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: processes_of(machine) == [], "both have ended", seconds=60)
    # The stub of the server notes nothing by itself.
    record = server_child(machine).record()
    (machine / "ended.json").write_text(json.dumps({name: record[name] for name in ("pid", "began")}))
    ran = neo("status")
    assert f"a signal ended its process ({pid})" in ran.out
    assert "Since" in ran.out and "Stopped by" not in ran.out, "the stop before it is over"


def test_a_cloud_that_died_says_so_and_when_it_was_seen_last(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    neo("down")
    neo("up")
    pid = running(machine).pid
    kill_supervisors(machine)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: processes_of(machine) == [], "all have ended", seconds=60)
    os.utime(Home(machine).log_file, (1795883650, 1795883650))
    ran = neo("status")
    assert ran.code == 5
    assert re.search(r"Last sign of life +2026-11-28 16:34:10 UTC\n", ran.out), ran.out
    assert "it died, and so did its supervisor" in ran.out and "Stopped by" not in ran.out
    record_file = server_child(machine).record_file
    assert record_file is not None
    record_file.write_text(json.dumps(server_child(machine).record() | {"boot": "another"}))
    assert "its machine was shut down or restarted" in neo("status").out


def test_of_a_cloud_that_never_ran_nothing_is_said(neo: Neo, machine: Path) -> None:
    ran = neo("status")
    assert "Since" not in ran.out and "Because" not in ran.out


@given(
    st.one_of(
        st.text(max_size=40),
        st.dictionaries(
            st.sampled_from(["at", "by", "command"]),
            st.one_of(st.floats(), st.integers(), st.text(max_size=400), st.none(), st.lists(st.none())),
        ).map(json.dumps),
    )
)
def test_a_damaged_note_is_no_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    home = tmp_path_factory.mktemp("state")
    (home / "stopped.json").write_text(text, errors="surrogatepass")
    stop = last_stop(Home(home))
    assert stop is None or (isinstance(stop, Stop) and stop.time and len(stop.by) <= 200)
