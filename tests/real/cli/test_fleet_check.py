"""`neo fleet check` and `neo fleet agent`: without a cloud, of this host and of a captured one."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.fleet.check import program_output
from neocloud.cli.main import run
from neocloud.fleet.agent.document import from_json
from tests.fast.cli.conftest import NEO, in_own_process
from tests.fast.fleet.agent import trees


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A host without GPUs, whose other parts are healthy."""
    root = trees.h100_node(tmp_path / "root")
    for address in trees.GPUS:
        (root / "sys/bus/pci/devices" / address).unlink()
    return root


def test_this_host_is_checked() -> None:
    """Whatever host runs the tests: each check has one word, with where its limit is from."""
    document = json.loads(in_own_process("fleet", "check", "--output", "json").stdout)
    checked = from_json(document)
    assert {each.check for each in checked.verdicts} >= {"disk_used", "load_per_cpu", "probe.mounts"}
    assert all(each.threshold and each.source and each.sample for each in checked.verdicts)
    assert not checked.simulated


def test_a_healthy_host_passes_and_a_table_says_what_was_not_run(healthy: Path) -> None:
    ran = in_own_process("fleet", "check", "--root", str(healthy))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table, _, rest = ran.stdout.partition("\nNOT RUN")
    assert table.split("\n")[0].split() == ["CHECK", "STATUS", "MEASURED", "THRESHOLD", "SOURCE"]
    assert "probe." not in table and "There is no GPU here" in rest
    assert "0 failed, 0 gave no answer" in ran.stderr
    shown = len(table.strip().split("\n")) - 1
    assert f"{shown} checks: " in ran.stderr and f"{shown} passed" in ran.stderr, "as many as are shown"
    assert "Simulated: files below" in ran.stderr


def test_a_failed_check_comes_first_and_ends_with_1(healthy: Path) -> None:
    trees.write(healthy, {"sys/class/nvme/nvme0/state": "dead"})
    ran = in_own_process("fleet", "check", "--root", str(healthy), "--seconds", "0")
    assert ran.returncode == 1
    assert ran.stdout.split("\n")[1].split()[:2] == ["nvme_not_live", "fail"]


def test_a_probe_without_an_answer_is_shown_and_ends_with_1(healthy: Path) -> None:
    (healthy / "proc/self/mountinfo").unlink()
    ran = in_own_process("fleet", "check", "--root", str(healthy), "--seconds", "0")
    assert ran.returncode == 1 and ran.stdout.split("\n")[1].split()[:2] == ["probe.mounts", "unknown"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[8]", "is not an object"),
        ('{"gpu": 8}', "'gpu' is not one of gpus, nvlinks"),
        ('{"gpus": "eight"}', "gpus is not a whole number"),
        ('{"gpus": -1}', "gpus is not a whole number"),
        ('{"mounts": "/jail"}', "mounts is not a list of paths"),
        ('{"mounts": ["jail"]}', "mounts is not a list of paths"),
        ("[" * 60_000, "is not JSON"),
        (" " * 70_000, "is larger than"),
    ],
)
def test_expectations_that_cannot_be_used_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(content)
    ran = in_own_process("fleet", "check", "--expect", str(path))
    assert ran.returncode == 2 and reason in ran.stderr and "Traceback" not in ran.stderr
    assert not ran.stdout


def test_expectations_that_are_not_there(tmp_path: Path) -> None:
    ran = in_own_process("fleet", "check", "--expect", str(tmp_path / "none.json"))
    assert ran.returncode == 2 and "cannot be read: no such file" in ran.stderr


def test_the_agent_writes_records_until_it_is_stopped(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    command = [*NEO, "fleet", "agent", "--spool", str(spool), "--interval", "1"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not (spool / "state.json").exists():
            assert started.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        other = in_own_process("fleet", "agent", "--spool", str(spool))
        assert other.returncode == 1 and "Another agent writes to" in other.stderr
        started.send_signal(signal.SIGINT)
        assert started.wait(20) == 0
    finally:
        started.kill()
        started.communicate()
    records = (spool / "records.jsonl").read_text().splitlines()
    assert json.loads(records[0])["kind"] == "changes"


def children_of(pid: int) -> list[str]:
    found: list[str] = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += each.read_text().split()
    return found


def test_ctrl_c_while_the_program_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start, pids = subprocess.Popen, list[int]()

    def interrupted(*command: Any, **options: Any) -> Any:
        started = start(*command, **options)
        pids.append(started.pid)
        os.kill(os.getpid(), signal.SIGINT)
        return started

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program_output(["sleep", "600"], 100)
    (pid,) = pids
    assert not Path("/proc", str(pid)).exists()


def test_ctrl_c_ends_the_command_and_its_program() -> None:
    command = [*NEO, "fleet", "check", "--seconds", "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        end = time.monotonic() + 60
        while not (children := children_of(started.pid)):
            assert started.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=20)
    assert started.returncode == 130 and not out and "Traceback" not in err
    assert not Path("/proc", children[0]).exists()


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["check", "--seconds", "-1"], ["agent"], ["agent", "--spool", "x", "--interval", "0"]):
        assert run(["fleet", *words]) == 2
        assert "--" in capsys.readouterr().err
