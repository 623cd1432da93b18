"""`neo up`, `status`, `down` and `destroy` with a server process that is real but has no engine behind it."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neocloud.cli.commands.status import _certificate_rows
from neocloud.cli.commands.teardown import mounts_below
from neocloud.cli.machine import server_process
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.server_process import (
    deaths_of_server,
    is_supervised,
    start_server,
    stop_server,
)
from neocloud.client.profiles import config_file, read_profiles
from neocloud.control_plane.prepared_server import PREPARED, PreparedServer
from neocloud.control_plane.server_supervisor import (
    SUCCESSOR,
    Supervisor,
    ended_file,
    server_child,
    successor_child,
    supervisor_child,
    supervisor_command,
)
from neocloud.control_plane.settings_file import read_settings
from neocloud.core.child_process import Child, Deaths
from neocloud.core.process import Process, age_seconds, began
from neocloud.testing.waiting import wait_until
from tests import ROOT
from tests.fast.cli.conftest import Neo

REPOSITORY = ROOT
FREE_PORTS = ("--grpc-port", "0", "--http-port", "0")


@pytest.fixture
def machine(
    neo: Neo, user_folders: Path, credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A machine on which everything is installed and built; the value is the default state folder."""
    monkeypatch.setattr("neocloud.cli.machine.home.SERVER_MODULE", "tests.real.cli.stub_server")
    monkeypatch.setattr("neocloud.cli.commands.up.check_machine", lambda: None)
    monkeypatch.setattr("neocloud.cli.machine.images.image_names", lambda: [])
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{REPOSITORY / 'src'}")
    home = user_folders / "state"
    yield home
    stop_server(Home(home))


def test_up_starts_the_server_and_makes_a_profile(neo: Neo, machine: Path) -> None:
    ran = neo("up", *FREE_PORTS)
    assert ran.code == 0, ran.err
    assert "Neocloud is running." in ran.out
    profile = read_profiles(config_file()).get()
    assert (profile.name, profile.home, profile.project_id) == ("default", str(machine), "project-e00risk")
    assert "Start the server: done in" in ran.err


def test_a_second_up_reuses_the_running_server(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    first = Home(machine).server()
    ran = neo("up")
    assert ran.code == 0
    assert "already running" in ran.out
    assert Home(machine).server() == first


def test_two_up_at_once_start_one_server(neo: Neo, machine: Path) -> None:
    """The one that comes second waits for the lock, says so, and finds the server running."""
    Home(machine).create()
    with (machine / "neo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, "-c", SECOND_UP, *FREE_PORTS],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        assert process.stderr is not None
        assert "Another neo is working" in process.stderr.readline()
    process.communicate()
    assert process.returncode == 0
    calls = (machine / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert "already running" in neo("up").out


SECOND_UP = """
import sys
from pathlib import Path
import neocloud.cli.machine.home as home, neocloud.cli.machine.images as images, neocloud.cli.target as target
import neocloud.cli.commands.up as up, os
home.SERVER_MODULE = "tests.real.cli.stub_server"
images.image_names = lambda: []
up.check_machine = lambda: None
target.DEFAULT_HOME = Path(os.environ["XDG_CONFIG_HOME"]).parent / "state"
from neocloud.cli.main import run
sys.exit(run(["up", *sys.argv[1:]]))
"""


def test_options_of_up_are_kept_for_the_next_time(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS, "--price-file", "prices.yaml")
    neo("down")
    neo("up")
    assert (machine / "calls").read_text().splitlines()[-1] == f"--home {machine}"
    kept = read_settings(machine)
    assert (kept.grpc_port, kept.price_file) == (0, Path("prices.yaml").absolute())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--tls",), "--tls takes"),
        (("--price-file", "other.yaml", "--audit-days", "30"), "--price-file, --audit-days take"),
    ],
)
def test_options_that_a_running_server_cannot_take_are_refused(
    neo: Neo, machine: Path, arguments: tuple[str, ...], named: str
) -> None:
    neo("up", *FREE_PORTS)
    before = read_settings(machine)
    ran = neo("up", *arguments)
    assert ran.code != 0
    assert f"{named} effect only when it starts. Nothing was changed. Stop it with" in ran.err
    assert read_settings(machine) == before


def test_options_that_the_running_server_has_are_not_refused(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS, "--tls", "--audit-days", "30")
    ran = neo("up", "--grpc-port", "0", "--tls", "--audit-days", "30")
    assert ran.code == 0, ran.err
    assert "already running" in ran.out


def test_tls_takes_any_free_port_where_the_others_do(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    neo("down")
    neo("up", "--tls")
    kept = read_settings(machine)
    assert (kept.tls_port, kept.redirector_port) == (0, 0)


def test_the_servers_own_words_are_shown_when_it_cannot_start(neo: Neo, machine: Path) -> None:
    Home(machine).create()
    (machine / "fail-start").touch()
    ran = neo("up", *FREE_PORTS)
    assert ran.code == 5
    assert ran.err.endswith("neo: Port 7370 is taken. Choose another with --grpc-port.\n")


def test_options_that_did_not_work_are_not_kept(neo: Neo, machine: Path) -> None:
    Home(machine).create()
    (machine / "fail-start").touch()
    neo("up", "--grpc-port", "4711")
    assert Home(machine).settings().grpc_port == 7370


def test_status_says_when_the_authority_ends_with_the_certificate() -> None:
    certificate = {"ends_at": "2026-11-30T09:30:00+00:00", "is_own": True, "is_expired": False, "problem": ""}
    (row,) = _certificate_rows(certificate)
    assert row == ("TLS expires", "2026-11-30 09:30 UTC; the server renews it before")
    (row,) = _certificate_rows({**certificate, "ends_with_authority": True})
    assert row == ("TLS expires", "2026-11-30 09:30 UTC; the cloud's certificate authority ends then too")


def test_status_shows_what_runs_and_what_the_engine_can_do(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    ran = neo("status")
    assert ran.code == 0, ran.err
    for text in (str(machine), "podman 4.3.1", "none found", "CPU, memory, network between clusters", "runc"):
        assert text in ran.out
    assert "Warning: Open files are limited to 1024." in ran.err
    assert "Warning: The certificate /tls/server.pem expires soon." in ran.err
    assert "bank" in ran.out and "2026-11-30 09:30 UTC" in ran.out
    document = json.loads(neo("status", "--output", "json").out)
    assert document["engine"]["cpus"] == 2
    assert document["clusters"][0]["workers"] == 2


def test_status_of_a_stopped_cloud_says_how_to_start_it(neo: Neo, machine: Path) -> None:
    ran = neo("status")
    assert ran.code == 5
    assert "stopped" in ran.out
    assert "neo up" in ran.out
    assert json.loads(neo("status", "--output", "json").out)["state"] == "stopped"


def test_down_stops_the_server_and_then_the_workloads_and_keeps_the_state(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    ran = neo("down")
    assert ran.code == 0
    assert Home(machine).server() is None
    assert (machine / "calls").read_text().splitlines()[-1].endswith("--stop-workloads")
    assert (machine / "credentials.json").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", b'{"tls_port": 73'), ("database-url", b"postgresql://\xff")]
)
def test_a_cloud_with_damaged_settings_is_stopped_wholly_and_they_are_named(
    neo: Neo, machine: Path, name: str, content: bytes
) -> None:
    neo("up", *FREE_PORTS)
    (machine / name).write_bytes(content)
    ran = neo("status")
    assert ran.code == 0 and f"{name} cannot be read" in ran.err
    assert neo("logs").code == 0
    ran = neo("down")
    assert ran.code == 0 and f"{name} cannot be read" in ran.err
    assert processes_of(machine) == []
    assert (machine / "calls").read_text().splitlines()[-1].endswith("--stop-workloads")
    ran = neo("up")
    assert ran.code != 0 and f"{name} cannot be read" in ran.err
    assert neo("destroy", "--yes").code == 0
    assert not machine.exists()


def test_a_server_of_an_earlier_version_is_recognised_and_stopped(tmp_path: Path) -> None:
    package = tmp_path / "program" / "neocloud"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "app.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    command = [sys.executable, "-m", "neocloud.app", "--home", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=package.parent) as earlier:
        assert earlier.stdout is not None and earlier.stdout.readline() == b"ready\n"
        addresses = {"grpc": "127.0.0.1:1", "http": "http://127.0.0.1:2"}
        (tmp_path / "server.json").write_text(
            json.dumps({"pid": earlier.pid, "version": "0.1.0", **addresses})
        )
        home = Home(tmp_path)
        try:
            server = home.server()
            assert server is not None and server.pid == earlier.pid
            assert stop_server(home)
            assert home.server() is None
        finally:
            earlier.kill()


def test_down_without_a_cloud_is_no_error(neo: Neo, machine: Path) -> None:
    ran = neo("down")
    assert ran.code == 0
    assert "nothing to stop" in ran.err


def test_destroy_leaves_no_file_and_no_profile(neo: Neo, machine: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "neocloud"
    assert cache.exists()
    neo("up", *FREE_PORTS)
    ran = neo("destroy", "--yes")
    assert ran.code == 0, ran.err
    assert not machine.exists()
    assert not cache.exists()
    assert not config_file().exists()
    assert not config_file().parent.exists()


def test_destroy_asks_first(neo: Neo, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neo("up", *FREE_PORTS)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        ran = neo("destroy")
    assert ran.code == 1
    assert "nothing was changed" in ran.err
    assert Home(machine).server() is not None


def test_destroy_does_not_delete_through_a_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    home = tmp_path / "state"
    table.write_text(
        f"36 35 98:0 / {home}/volumes/a rw shared:1 - ext4 /dev/sda rw\n"
        f"37 35 98:0 / {home}/volumes/a/b\\040c rw - ext4 /dev/sda rw\n"
        f"38 35 98:0 / {home}-other rw - ext4 /dev/sda rw\n"
    )
    assert mounts_below(home, table) == [f"{home}/volumes/a/b c", f"{home}/volumes/a"]


def test_a_folder_with_other_files_is_refused(neo: Neo, machine: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    ran = neo("up", "--home", str(tmp_path / "mine"))
    assert ran.code == 1
    assert "already holds other files" in ran.err
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_server_that_is_killed_runs_again_and_status_says_so(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    first = running(machine)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: (now := Home(machine).server()) and now.pid != first.pid, "it runs again", seconds=60)
    ran = neo("up")  # waits until it is ready, and changes nothing
    assert ran.code == 0, ran.err
    assert deaths_of_server(Home(machine)).restarts == 1
    assert "the server was killed by SIGKILL" in neo("status").out
    restarts = json.loads(neo("status", "--output", "json").out)["restarts"]
    assert (restarts["count"], restarts["last"]["why"]) == (1, "was killed by SIGKILL")
    assert "killed by SIGKILL" in (machine / "log" / "supervisor.log").read_text()


def test_up_right_after_a_kill_waits_for_the_restart(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    for _ in range(3):
        dying = Process.of(running(machine).pid)
        assert dying is not None
        dying.send(signal.SIGKILL)
        assert dying.wait(60), "the kernel has ended it; whether the supervisor knows it is open"
        ran = neo("up")
        assert ran.code == 0, ran.err
    wait_until(lambda: len(processes_of(machine)) == 3, "a server, a supervisor, its successor", seconds=60)


def test_a_supervisor_that_is_killed_has_a_successor(neo: Neo, machine: Path) -> None:
    """HEALTH-09: whichever process dies first, and if both die at once, the server is back."""
    neo("up", *FREE_PORTS)
    for number, together in enumerate((False, True, True)):
        server, supervisor, successor = running(machine).pid, supervisor_of(machine), successor_of(machine)
        os.kill(supervisor, signal.SIGKILL)
        if together:
            os.kill(server, signal.SIGKILL)
        wait_for_process(supervisor_child, machine, successor)
        assert together or running(machine).pid == server, "it adopts a server that runs"
        if not together:
            os.kill(server, signal.SIGKILL)
        assert neo("up").code == 0, "also while the server is being started"
        assert running(machine).pid != server and supervisor_of(machine) == successor
        assert deaths_of_server(Home(machine)).restarts == number + 1
        assert is_supervised(Home(machine))
    wait_until(lambda: len(processes_of(machine)) == 3, "it has a successor, too", seconds=60)
    assert neo("down").code == 0
    assert processes_of(machine) == []


def test_a_server_that_ended_on_request_as_its_supervisor_died_stays_stopped(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    server, successor = server_child(machine).record(), successor_of(machine)
    ended_file(machine).write_text(json.dumps({name: server[name] for name in ("pid", "began")}))
    os.kill(supervisor_of(machine), signal.SIGSTOP)
    os.kill(server["pid"], signal.SIGKILL)
    os.kill(supervisor_of(machine), signal.SIGKILL)
    wait_until(lambda: Process.of(successor) is None, "the successor has ended, too", seconds=60)
    assert processes_of(machine) == []


def test_a_supervisor_that_an_upgrade_starts_by_the_words_of_a_successor_starts_the_server(
    neo: Neo, machine: Path
) -> None:
    neo("up", *FREE_PORTS)
    command = [*running_command(machine)]
    stop_server(Home(machine))
    started = start_server(Home(machine), supervisor_command(machine, command, SUCCESSOR))
    assert started.pid == running(machine).pid
    assert deaths_of_server(Home(machine)).restarts == 0, "nothing was taken over"


def running_command(machine: Path) -> list[str]:
    words = Path(f"/proc/{running(machine).pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return [os.fsdecode(word) for word in words]


def test_a_successor_that_cannot_be_recorded_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("neocloud.core.child_process.write_file", full)
    child = supervisor_child(tmp_path)
    child.record_own_process()
    assert child.process is not None and child.process.pid == os.getpid()
    assert "is not recorded" in caplog.text


def test_the_life_of_a_server_that_was_adopted_counts_from_its_own_start(tmp_path: Path) -> None:
    """Else each takeover would be followed by a longer pause before the next start."""
    child = server_child(tmp_path)
    with child.open_log() as output:
        process = Process.start([sys.executable, "-c", "import time; time.sleep(600)"], output)
    child.take(process)
    child.deaths = Deaths(restarts=3, short_lives=3)
    assert 0 <= process.age_seconds < 60
    assert age_seconds(process.began - 100 * os.sysconf("SC_CLK_TCK")) >= 100
    assert process.stop(10)
    assert child.record_file is not None
    record = child.record()
    for seconds, short_lives in ((1, 4), (100, 1)):
        ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - seconds) * os.sysconf("SC_CLK_TCK"))
        deaths = {"restarts": 3, "short_lives": 3, "at": 0.0, "why": "", "said": ""}
        child.record_file.write_text(json.dumps(record | {"began": ticks, "deaths": deaths}))
        child.note_end_unseen()
        assert (child.deaths.restarts, child.deaths.short_lives) == (4, short_lives)


PREPARE_AT_ONCE = """
import sys
import neocloud.control_plane.server_supervisor as supervisor
supervisor.PREPARE_SECONDS = 0.0
sys.exit(supervisor.main())
"""


@pytest.fixture
def prepares_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor prepares a server at once. Its successors do so after the usual time."""
    monkeypatch.setattr(
        "neocloud.cli.machine.server_process.supervisor_command",
        lambda home, command: [sys.executable, "-c", PREPARE_AT_ONCE, str(home), *command],
    )


@pytest.mark.usefixtures("prepares_at_once")
def test_a_prepared_server_serves_as_soon_as_the_server_dies(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    for _ in range(2):
        wait_until(lambda: prepared_for(machine), "another one is prepared", seconds=60)
        (prepared,) = prepared_for(machine)
        os.kill(running(machine).pid, signal.SIGKILL)
        wait_for_process(server_child, machine, prepared)
        assert neo("up").code == 0
        assert running(machine).pid == prepared
    wait_until(lambda: prepared_for(machine), "another one is prepared", seconds=60)
    for each in (*prepared_for(machine), running(machine).pid):
        os.kill(each, signal.SIGKILL)
    assert neo("up").code == 0, "without a prepared one, another one is started"
    assert neo("down").code == 0
    wait_until(lambda: processes_of(machine) == [], "a prepared server ends with its supervisor", seconds=60)


@pytest.mark.usefixtures("prepares_at_once")
@pytest.mark.parametrize("together", [False, True])
def test_a_successor_uses_the_server_that_is_prepared(neo: Neo, machine: Path, together: bool) -> None:
    neo("up", *FREE_PORTS)
    prepared, successor, supervisor = successor_with_prepared(machine)
    os.kill(supervisor, signal.SIGKILL)
    if not together:
        wait_for_process(supervisor_child, machine, successor)
        assert prepared_for(machine) == [prepared], "it does not end with the supervisor"
    os.kill(running(machine).pid, signal.SIGKILL)
    wait_for_process(server_child, machine, prepared)
    wait_until(lambda: (now := Home(machine).server()) and now.pid == prepared, "it serves", seconds=60)
    another = successor_of(machine)
    os.kill(supervisor_of(machine), signal.SIGKILL)
    wait_for_process(supervisor_child, machine, another)
    assert running(machine).pid == prepared, "one that serves is no longer taken for a prepared one"
    assert neo("down").code == 0
    wait_until(lambda: processes_of(machine) == [], "all have ended", seconds=60)


def test_a_successor_stays_where_no_other_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Process:
        raise OSError("no memory")

    supervisor = Supervisor(tmp_path, ["true"])
    with (tmp_path / "log").open("wb") as log:
        waiting = Process.start(["sleep", "60"], log)
    supervisor._successor.process = waiting
    monkeypatch.setattr(Child, "start", refused)
    supervisor._hand_on()
    assert supervisor._successor.process is waiting and not waiting.wait(0)
    assert waiting.stop(10)


@pytest.mark.usefixtures("prepares_at_once")
def test_a_prepared_server_ends_with_the_last_that_could_use_it(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    prepared, *_ = successor_with_prepared(machine)
    kill_supervisors(machine)
    wait_until(lambda: Process.of(prepared) is None, "the prepared server has ended", seconds=60)
    assert neo("down").code == 0


def successor_with_prepared(machine: Path) -> tuple[int, int, int]:
    """Return the prepared server, the successor that was handed it, and their supervisor."""

    def handed() -> bool:
        ready, successor = prepared_for(machine), found(successor_child, machine)
        words = Path(f"/proc/{successor}/cmdline").read_bytes() if successor else b""
        return len(ready) == 1 and f":{ready[0]}:".encode() in words

    wait_until(handed, "a successor has the prepared server", seconds=60)
    return prepared_for(machine)[0], successor_of(machine), supervisor_of(machine)


@pytest.mark.parametrize(
    "handle", ["", "7", "x:1:2", "1:1:1", "-1:1:1", "99999:1:1", "{pipe}:1:0", "{file}:{pid}:{began}"]
)
def test_words_that_name_no_prepared_server_are_ignored(handle: str, tmp_path: Path) -> None:
    """Such words come from a process that an upgrade looked at."""
    reading, writing = os.pipe()
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    me = os.getpid()
    words = handle.format(pipe=writing, file=file, pid=me, began=began(me))
    assert PreparedServer.handed(words) is None
    right = PreparedServer.handed(f"{writing}:{me}:{began(me)}")
    assert right is not None and not os.get_inheritable(writing)
    for each in (reading, writing, file):
        os.close(each)


def test_up_starts_a_supervisor_where_it_and_its_successor_died(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    server, supervisor = running(machine), supervisor_of(machine)
    kill_supervisors(machine)
    wait_until(lambda: not is_supervised(Home(machine)), "the supervisor is dead", seconds=60)
    assert not json.loads(neo("status", "--output", "json").out)["is_supervised"]
    assert "not watched" in neo("status").out
    ran = neo("up")
    assert ran.code == 0, ran.err
    assert "another one watches the server now" in ran.err
    assert running(machine).pid == server.pid
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: (now := Home(machine).server()) and now.pid != server.pid, "again", seconds=60)
    assert supervisor_of(machine) != supervisor


def test_a_server_without_its_supervisor_is_stopped_too(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    kill_supervisors(machine)
    assert neo("down").code == 0
    assert processes_of(machine) == []


def test_a_server_that_ends_on_request_stays_stopped(neo: Neo, machine: Path) -> None:
    """`kill PID` stops the server alone; its workloads continue."""
    neo("up", *FREE_PORTS)
    os.kill(running(machine).pid, signal.SIGTERM)
    wait_until(lambda: processes_of(machine) == [], "both have ended", seconds=60)
    assert json.loads(neo("status", "--output", "json").out)["state"] == "stopped"
    assert neo("up").code == 0


def test_a_server_that_does_not_start_again_is_tried_with_pauses_and_status_says_why(
    neo: Neo, machine: Path
) -> None:
    neo("up", *FREE_PORTS)
    (machine / "fail-start").touch()
    os.kill(running(machine).pid, signal.SIGKILL)
    wait_until(lambda: deaths_of_server(Home(machine)).short_lives >= 4, "it died again", seconds=120)
    ran = neo("status")
    assert ran.code == 5
    assert "restarting" in ran.out and "Port 7370 is taken" in ran.out
    assert "times in a row" in ran.err
    assert "short lives in a row" in (machine / "log" / "supervisor.log").read_text()
    ran = neo("up")
    assert ran.code == 5 and "Port 7370 is taken" in ran.err
    (machine / "fail-start").unlink()
    assert neo("up").code == 0
    wait_until(lambda: len(processes_of(machine)) == 3, "a server, a supervisor, its successor", seconds=60)
    (machine / "fail-start").touch()
    os.kill(running(machine).pid, signal.SIGKILL)
    wait_until(lambda: Home(machine).server() is None, "it is dead", seconds=60)
    assert neo("down").code == 0, "also while it waits for the next start"
    assert processes_of(machine) == []


def test_the_supervisor_of_a_folder_that_was_removed_ends(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    server = running(machine)
    found = Process.of(supervisor_of(machine))
    shutil.rmtree(machine)
    os.kill(server.pid, signal.SIGKILL)
    assert found is not None and found.wait(60)
    assert not machine.exists()


def test_sigterm_in_any_phase_leaves_no_process(neo: Neo, machine: Path) -> None:
    """While the server starts, runs, is dead, and is started again."""
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0):
        neo("up", *FREE_PORTS)
        supervisor, server = Process.of(supervisor_of(machine)), running(machine)
        assert supervisor is not None
        os.kill(server.pid, signal.SIGKILL)
        threading.Event().wait(delay)  # the phase is what is tried out
        supervisor.send(signal.SIGTERM)
        assert supervisor.wait(90)
        assert processes_of(machine) == [], delay


def running(machine: Path) -> RunningServer:
    server = Home(machine).server()
    assert server is not None
    return server


def found(child: Callable[[Path], Child], machine: Path) -> int:
    """Return the id of the recorded process; 0 when it has ended."""
    process = child(machine).find()
    return process.pid if process is not None else 0


def supervisor_of(machine: Path) -> int:
    pid = found(supervisor_child, machine)
    assert pid
    return pid


def successor_of(machine: Path) -> int:
    wait_until(lambda: found(successor_child, machine), "it has a successor", seconds=60)
    return found(successor_child, machine)


def kill_supervisors(machine: Path) -> None:
    """Kill the supervisor while it does not see that its successor is dead."""
    supervisor, successor = supervisor_of(machine), successor_of(machine)
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(successor, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)


def wait_for_process(child: Callable[[Path], Child], machine: Path, pid: int) -> None:
    wait_until(lambda: found(child, machine) == pid, f"process {pid} is recorded", seconds=60)


def wait_for_another_server(machine: Path, pid: int) -> None:
    wait_until(lambda: (now := Home(machine).server()) and now.pid != pid, "another one runs", seconds=60)


def prepared_for(machine: Path) -> list[int]:
    """Return the servers that are prepared and do not serve."""
    return [each for each in processes_of(machine, last=PREPARED) if each != found(server_child, machine)]


def processes_of(machine: Path, last: str = "") -> list[int]:
    """Return the server, its supervisor and what it keeps, by their command lines, or those with this last
    word."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if str(machine).encode() in words and (not last or words[-1] == last.encode()):
                processes.append(int(folder.name))
    return processes


def test_interrupting_up_leaves_no_server(neo: Neo, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []

    def interrupted(home: Home, supervisor: Child, deaths_allowed: int) -> None:
        assert supervisor.process is not None
        started.append(supervisor.process)
        raise KeyboardInterrupt

    monkeypatch.setattr("neocloud.cli.machine.server_process._wait_until_ready", interrupted)
    assert neo("up", *FREE_PORTS).code == 130
    assert started[0].wait(0)
    assert processes_of(machine) == []


class TestRequirements:
    def test_without_root_the_error_says_so(self, monkeypatch: pytest.MonkeyPatch, neo: Neo) -> None:
        monkeypatch.setattr(server_process.os, "geteuid", lambda: 1000)
        # The folder is still made by root, and would be refused as another user's.
        monkeypatch.setattr("neocloud.cli.machine.home.ensure_private", lambda path: path.mkdir())
        ran = neo("up")
        assert ran.code == 4
        assert "you are not root. Run it as root" in ran.err

    def test_missing_programs_are_named_with_the_command_that_installs_all(
        self, monkeypatch: pytest.MonkeyPatch, neo: Neo
    ) -> None:
        monkeypatch.setattr(server_process.os, "geteuid", lambda: 0)
        monkeypatch.setattr(server_process, "_TOOL_FOLDERS", "/nowhere")
        monkeypatch.setenv("PATH", "/nowhere")
        ran = neo("up")
        assert ran.code == 1
        assert ran.err.startswith(
            "neo: podman, runc, catatonit, netavark, nft are not installed. Install all"
        )
        installer = REPOSITORY / "scripts" / "install-debian-packages"
        assert f"bash {installer} run" in ran.err
        assert "apt-get install podman runc catatonit netavark nftables" in ran.err

    def test_a_podman_that_is_too_old_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, neo: Neo, tmp_path: Path
    ) -> None:
        tools = tmp_path / "bin"
        tools.mkdir()
        for name in server_process.TOOLS:
            (tools / name).write_text("#!/bin/sh\necho podman version 3.0.1\n")
            (tools / name).chmod(0o755)
        monkeypatch.setattr(server_process.os, "geteuid", lambda: 0)
        monkeypatch.setenv("PATH", f"{tools}:/bin")
        ran = neo("up")
        assert "Podman 3.0 is too old: 4.3 or newer is needed." in ran.err


def test_waiting_for_the_lock_survives_a_destroy(tmp_path: Path) -> None:
    """A process that waits while `neo destroy` removes the folder locks the new one, not the old."""
    home = Home(tmp_path / "state")
    home.create()
    waits = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with home.locked(waits.set):
            assert (home.path / "neo.lock").exists()
            entered.set()

    with home.locked(lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        shutil.rmtree(home.path)
    thread.join(60)
    assert entered.is_set()
