"""A probe that hangs, crashes or talks without end harms nothing, and is a finding. HEALTH-01."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neocloud.fleet.nodes.events import Status
from neocloud.fleet.policy.actions import Action
from tests import ROOT
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Node

pytestmark = pytest.mark.slow

PROGRAM = "tests.fast.fleet.agent.probe_program"


def rounds(*words: str) -> list[Any]:
    ran = subprocess.run(
        [sys.executable, "-m", PROGRAM, *words], capture_output=True, check=False, timeout=60,
        cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_each_probe_ends_or_is_ended_and_says_why() -> None:
    (found,) = rounds("each")
    assert found.pop("seconds") < 20
    assert found["works"] == {"why": "", "lives": False, "found": True}
    reasons = {name: each["why"] for name, each in found.items()}
    assert reasons["hangs"] == "the probe did not answer within 2 s and was ended"
    assert reasons["crashes"] == "the probe was ended by SIGSEGV"
    assert reasons["raises"] == "the probe failed: OSError: the driver says no"
    assert "more than 4,194,304 bytes" in reasons["talks_without_end"]
    assert not any(each["lives"] for each in found.values())


def test_the_whole_process_group_ends(tmp_path: Path) -> None:
    rounds("group", str(tmp_path / "pid"))
    pid = (tmp_path / "pid").read_text()
    stat = Path("/proc", pid, "stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_probe_that_cannot_be_ended_is_named_and_not_started_twice() -> None:
    first, second, third = rounds("stuck")
    (outcome, stuck), pid = first, first[1]["hangs"]
    assert (
        outcome["hangs"]["lives"]
        and f"process {pid} of the probe has been blocked" in outcome["hangs"]["why"]
    )
    assert "no second one is started" in outcome["hangs"]["why"] and outcome["works"]["found"]
    assert second[1] == stuck and second[0]["hangs"]["lives"], "the same process is waited for"
    assert third[1] == {} and third[0]["hangs"]["why"].endswith("and was ended"), (
        "it ended, so it is tried again"
    )


def test_a_mount_that_does_not_answer(tmp_path: Path) -> None:
    trees.h100_node(tmp_path)
    said = rounds("mount", str(tmp_path))
    assert [each["mount_silent_s"][0] for each in said] == [Status.UNKNOWN, Status.UNKNOWN, Status.FAIL]
    assert "/jail: for at least 61 s" in said[-1]["mount_silent_s"][1]
    assert said[-1]["disk_used"][0] == Status.PASS, "the others were asked anyway"


def test_a_call_of_nvml_that_hangs_is_a_finding(node: Node) -> None:
    node.gpus("", "hang nvmlDeviceGetTemperature", *[""] * 6)
    verdicts = node.verdicts()
    probe = verdicts["probe.gpus"]
    assert (probe.status, probe.action) == (Status.UNKNOWN, Action.TRIAGE)
    assert probe.sample == "the probe did not answer within 10 s and was ended"
    assert verdicts["ib_port_down_s"].status is Status.PASS, "the other probes answer"


def test_a_driver_that_crashes_is_a_finding(node: Node) -> None:
    node.gpus("crash nvmlDeviceGetName", *[""] * 7)
    assert node.verdicts()["probe.gpus"].sample == "the probe was ended by SIGABRT"


def test_nvml_that_does_not_start_is_unknown_where_gpus_are_on_the_bus(node: Node) -> None:
    node.nvml("init 18\n")
    lost = node.verdicts()["gpu_lost"]
    assert lost.status is Status.UNKNOWN
    assert lost.sample.startswith("8 GPUs are on the bus, and NVML does not start")


def test_a_count_of_gpus_is_checked_where_the_bus_has_none(node: Node) -> None:
    for address in trees.GPUS:
        (node.root / "sys/bus/pci/devices" / address).unlink()
    node.nvml("init 9\n")
    missing = node.verdicts()["gpu_missing"]
    assert missing.status is Status.FAIL and missing.sample.startswith("8 (0 of 8 GPUs")


def test_a_gpu_that_a_virtual_machine_has_is_not_missed(node: Node) -> None:
    del node.expected["gpus"]
    (node.root / trees.device(trees.GPUS[7]) / "driver").symlink_to("../../bus/pci/drivers/vfio-pci")
    node.gpus(*[""] * 7)
    assert node.verdicts()["gpu_missing"].sample == "0 (7 answer of 7 on the bus or known to NVML)"


def test_other_errors_of_the_driver_are_unknown(node: Node) -> None:
    node.gpus("fail nvmlDeviceGetRemappedRows 999", *[""] * 7)
    verdicts = node.verdicts()
    assert verdicts["row_remap_failed"].status is Status.UNKNOWN
    assert verdicts["ecc_uncorrected"].status is Status.PASS


def test_the_agent_loads_nothing_that_a_fork_would_harm() -> None:
    script = (
        "import sys, threading, neocloud.fleet.agent.__main__\n"
        "assert threading.active_count() == 1\n"
        "import pynvml\n"
        "assert pynvml.nvmlLib is None\n"
        "print([name for name in ('grpc', 'yaml', 'asyncio', 'filelock') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout.strip() == b"[]"
