"""`neo fleet simulate`: needs no cloud, says what is simulated, and stops when asked."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.cli.main import run

QUICK = ("fleet", "simulate", "--gpus", "512", "--days", "5", "--rate", "10")


@pytest.fixture(autouse=True)
def nobody(user_folders: Path) -> None:
    """There is no cloud and no profile."""


def test_the_table_says_that_it_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK]) == 0
    shown = capsys.readouterr()
    assert shown.out.split()[:2] == ["Evidence", "simulated"]
    assert "512 GPUs on 64 nodes, 5 days" in shown.out and "ETTR" in shown.out
    assert "Simulating 512 GPUs" in shown.err and "50%" in shown.err


def test_json_has_the_inputs_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--spares", "3", "--interval", "600", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["evidence"] == "simulated"
    assert document["scenario"]["spares"] == 3
    assert document["result"]["checkpoint_interval"] == 600
    assert {each["kind"] for each in document["inputs"]} == {"published", "derived", "assumed"}


def test_gpus_come_in_nodes_of_eight(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "simulate", "--gpus", "12"]) == 2
    assert "not a multiple of 8" in capsys.readouterr().err


def test_ctrl_c_ends_it_without_a_result() -> None:
    command = [sys.executable, "-m", "neocloud.cli.main", "fleet", "simulate", "--days", "3660"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        assert "Simulating" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert not process.stdout.read() and "Traceback" not in process.stderr.read()
