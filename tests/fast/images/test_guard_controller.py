"""The image's `guard-controller` around a program that beats as slurmctld does: never two in control."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests import ROOT

GUARD = ROOT / "images/slurm/rootfs/usr/local/lib/neocloud/guard-controller"

SLURMCTLD = """\
#!{python}
import os, signal, struct, sys, time
if sys.argv[1] == "-V":
    sys.exit(0)
number = int(os.environ["HOSTNAME"][-1])
state = os.environ["CONTROLLER_STATE"]
def log(word):
    with open(f"{{state}}/log", "a") as file:
        file.write(f"{{word}} {{number}} {{os.getpid()}}\\n")
def end(*_):
    log("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
log("started")
if os.path.exists(f"{{state}}/broken-{{number}}"):
    sys.exit(1)
while True:
    if number == 0 or os.path.exists(f"{{state}}/take-over"):
        with open(f"{{state}}/slurmctld/new-{{number}}", "wb") as file:
            file.write(struct.pack(">QQ", time.time_ns() // 10**6, number))
        os.replace(f"{{state}}/slurmctld/new-{{number}}", f"{{state}}/slurmctld/heartbeat")
    time.sleep(0.1)
"""
"""Its heartbeats are in milliseconds, so that each differs from the one before."""


class Pair:
    def __init__(self, state: Path) -> None:
        self.state = state
        (state / "slurmctld").mkdir()
        self.program = state / "slurmctld.py"
        self.program.write_text(SLURMCTLD.format(python=sys.executable))
        self.program.chmod(0o755)
        self.guards: list[subprocess.Popen[bytes]] = []

    def environment(self, number: int) -> dict[str, str]:
        own = {"HOSTNAME": f"controller-{number}", "CONTROLLER_STATE": str(self.state)}
        return {**os.environ, **own, "SLURMCTLD": str(self.program)}

    def start(self, number: int) -> subprocess.Popen[bytes]:
        with (self.state / f"said-{number}").open("ab") as said:
            guard = subprocess.Popen(
                [GUARD, "run"], env=self.environment(number), start_new_session=True, stdout=said
            )
        self.guards.append(guard)
        return guard

    def said(self, number: int) -> str:
        return (self.state / f"said-{number}").read_text()

    def log(self) -> list[str]:
        path = self.state / "log"
        return path.read_text().splitlines() if path.exists() else []

    def daemon(self, number: int) -> int:
        """The process id of the program that a guard last started."""
        started = f"started {number} "
        wait_until(lambda: any(line.startswith(started) for line in self.log()), "it has started")
        return int([line for line in self.log() if line.startswith(started)][-1].split()[2])

    def moment(self, number: int) -> int:
        """When this controller last beat, in milliseconds; 0 if the other did."""
        try:
            moment, writer = struct.unpack(">QQ", (self.state / "slurmctld" / "heartbeat").read_bytes())
        except FileNotFoundError:
            return 0
        return moment if writer == number else 0

    def wait_until_in_control(self, number: int) -> None:
        said = f"controller-{number} is in control\n"
        wait_until(lambda: said in self.said(number), f"the guard of controller-{number} sees it in control")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    for guard in pair.guards:
        if guard.poll() is None:
            os.killpg(guard.pid, signal.SIGCONT)
            os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def beat(pair: Pair, number: int, moment: int) -> None:
    (pair.state / "slurmctld" / "heartbeat").write_bytes(struct.pack(">QQ", moment, number))


def test_one_that_stands_still_is_killed_before_the_other_may_take_over(pair: Pair) -> None:
    guard = pair.start(0)
    pair.wait_until_in_control(0)
    daemon = pair.daemon(0)
    os.kill(daemon, signal.SIGSTOP)
    assert guard.wait(60) == 1
    assert not runs(daemon) and "stood still" in pair.said(0)


def others_of(guard: subprocess.Popen[bytes], daemon: int) -> set[int]:
    """A guard and the programs that it runs, without its slurmctld."""
    children = Path(f"/proc/{guard.pid}/task/{guard.pid}/children").read_text().split()
    return {guard.pid, *map(int, children)} - {daemon}


@pytest.mark.parametrize("daemon_first", [True, False])
def test_one_that_stood_still_with_its_guard_does_not_keep_control_from_the_other(
    pair: Pair, daemon_first: bool
) -> None:
    """Its slurmctld writes heartbeats at once, perhaps before either guard has looked."""
    guard = pair.start(0)
    pair.wait_until_in_control(0)
    daemon = pair.daemon(0)
    os.killpg(guard.pid, signal.SIGSTOP)
    second = start_in_control(pair)
    if daemon_first:
        os.kill(daemon, signal.SIGCONT)
        wait_until(lambda: pair.moment(0), "it writes its heartbeat")
    os.killpg(guard.pid, signal.SIGCONT)
    assert guard.wait(60) == 1
    assert not runs(daemon) and pair.said(0).count("ending") == 1
    began = pair.moment(1)
    wait_until(lambda: pair.moment(1) > began + 1000, "the second keeps control")
    assert second.poll() is None


def test_one_whose_clocks_stood_still_is_killed_when_it_sees_that_another_came_into_control(
    pair: Pair,
) -> None:
    """A virtual machine that was paused does so: its guard cannot know how long."""
    guard = pair.start(0)
    pair.wait_until_in_control(0)
    daemon = pair.daemon(0)
    os.killpg(guard.pid, signal.SIGSTOP)
    (pair.state / "in-control").write_text("controller-1 another\n")
    os.killpg(guard.pid, signal.SIGCONT)
    assert guard.wait(60) == 1
    assert not runs(daemon) and "controller-1 is in control; ending this one" in pair.said(0)


def test_the_first_asks_the_second_for_control_and_waits_until_its_state_is_saved(pair: Pair) -> None:
    second = start_in_control(pair)
    first = pair.start(0)
    assert second.wait(60) == 0
    pair.wait_until_in_control(0)
    words = [line.rsplit(" ", 1)[0] for line in pair.log()]
    assert words == ["started 1", "saved 1", "started 0"]
    assert not (pair.state / "control-is-wanted").exists()
    first.terminate()
    assert first.wait(60) == 0
    assert pair.log()[-1].startswith("saved 0")


def start_in_control(pair: Pair) -> subprocess.Popen[bytes]:
    """The second, which starts once it sees the first beat, and takes over."""
    (pair.state / "take-over").unlink(missing_ok=True)
    known = len(pair.log())
    (pair.state / "said-1").write_text("")
    second = pair.start(1)
    wait_until(lambda: beat(pair, 0, time.time_ns()) or pair.log()[known:], "the second has started")
    (pair.state / "take-over").touch()
    pair.wait_until_in_control(1)
    return second


def test_the_first_does_not_start_while_the_second_is_in_control_and_does_not_answer(pair: Pair) -> None:
    (pair.state / "take-over").touch()
    daemon = subprocess.Popen([pair.program, "-D"], env=pair.environment(1), start_new_session=True)
    try:
        wait_until(lambda: pair.moment(1), "it is in control")
        pair.start(0)
        wait_until(lambda: (pair.state / "control-is-wanted").exists(), "control is asked for")
        asked = pair.moment(1)
        wait_until(lambda: pair.moment(1) > asked + 3000, "it beats on")
        assert [line.split()[1] for line in pair.log()] == ["1"]
    finally:
        daemon.kill()
        daemon.wait()
    wait_until(lambda: len(pair.log()) == 2, "the heartbeat stopped, so the first starts")


def test_a_first_that_cannot_start_does_not_take_control_away_again_and_again(pair: Pair) -> None:
    """Its container starts it again and again."""
    second = start_in_control(pair)
    (pair.state / "broken-0").touch()
    assert pair.start(0).wait(60) == 1
    assert second.wait(60) == 0
    start_in_control(pair)
    first = pair.start(0)
    began = pair.moment(1)
    wait_until(lambda: pair.moment(1) > began + 10_000, "the second keeps control")
    assert first.poll() is None and not (pair.state / "control-is-wanted").exists()
    assert [line.split()[1] for line in pair.log() if line.startswith("started")] == ["1", "0", "1"]


def test_a_first_without_its_program_does_not_ask_for_control(pair: Pair) -> None:
    second = start_in_control(pair)
    environment = {**pair.environment(0), "SLURMCTLD": str(pair.state / "missing")}
    first = subprocess.Popen([GUARD, "run"], env=environment, start_new_session=True)
    pair.guards.append(first)
    began = pair.moment(1)
    wait_until(lambda: pair.moment(1) > began + 6_000, "the second keeps control")
    assert first.poll() is None and second.poll() is None
    (pair.state / "missing").symlink_to(pair.program)
    assert second.wait(60) == 0


def test_who_is_in_control_is_read_from_the_heartbeat(pair: Pair) -> None:
    command = [GUARD, "in-control"]
    asked = subprocess.run(command, env=pair.environment(0), capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stdout) == (1, "")
    beat(pair, 1, int(time.time()) - 30)
    asked = subprocess.run(command, env=pair.environment(0), capture_output=True, text=True, check=False)
    number, age = asked.stdout.split()
    assert number == "1" and 30 <= int(age) < 90
