"""Use of GPUs: read from a stand-in for NVML, handed over, and refused where it is made up."""

import json
import math
import subprocess
from typing import Any

import pytest

from neocloud.fleet.agent import delivery, gpu_use_json
from neocloud.fleet.agent.document import DocumentError, decode
from neocloud.fleet.agent.gpu_use_json import GpusSaid
from neocloud.fleet.agent.probes.gpus import MOST_GPUS
from neocloud.fleet.nodes.events import Status
from neocloud.fleet.nodes.gpu_use import MEASURES, GpuUse
from neocloud.testing.waiting import wait_until
from tests.fast.fleet.agent.conftest import Bundle, Node

H100 = "NVIDIA H100 80GB HBM3"
BUSY = (
    "use 97\nmemory_use 40\nmemory_used_mib 70000\npower_mw 640500\ntemperature 61\nclock_mhz 1755\ntensor 45"
)
SCRIPT = (
    "import json, sys; from pathlib import Path\n"
    "from neocloud.fleet.agent.expected import Expected\n"
    "from neocloud.fleet.agent.probes import gpu_use as probe\n"
    "from neocloud.fleet.agent.host_files import Tree\n"
    "from neocloud.fleet.agent.probe_result import decode, encode\n"
    "probe.SAMPLE_SECONDS = 0.01\n"
    "found = decode(encode(probe.gpu_use(Tree(Path('/')), Expected())))\n"
    "print(json.dumps([[each.index, each.model, each.values] for each in found.gpus] + [found.simulated]))"
)


def read(node: Node) -> list[Any]:
    command = [node.command("check")[0], "-c", SCRIPT]
    ran = subprocess.run(command, env=node.environment, capture_output=True, check=True, timeout=60)
    *gpus, simulated = json.loads(ran.stdout)
    assert simulated or not gpus, "a stand-in for NVML answers, and says so"
    return gpus


def test_a_gpu_tells_each_measure_in_its_unit(node: Node) -> None:
    """OBS-02: utilisation, memory utilisation, frame-buffer use, SM clock, memory clock."""
    node.gpus(BUSY)
    ((index, model, values),) = read(node)
    assert (index, model) == (0, H100)
    assert values == {
        **{"utilisation": 97, "memory_utilisation": 40, "memory_used": 70000, "power": 640.5},
        **{"temperature": 61, "sm_clock": 1755, "memory_clock": 1755, "tensor_active": 0.45},
    }
    assert values.keys() == MEASURES.keys()


@pytest.mark.parametrize(
    "lines",
    [
        "tensor -1",
        "gpm 3",
        "tensor 101",
        "fail nvmlGpmQueryDeviceSupport 13",
        "fail nvmlGpmSampleGet 4",
        "fail nvmlGpmMetricsGet 999",
    ],
)
def test_tensor_cores_that_are_not_told_of_have_no_value_and_not_0(node: Node, lines: str) -> None:
    """Without GPM, without the right to read it, or where its call fails; the other GPU is read."""
    node.gpus(f"tensor 45\n{lines}", "tensor 0")
    (_, _, without), (_, _, idle) = read(node)
    assert "tensor_active" not in without and without["power"] == 78
    assert idle["tensor_active"] == 0, "which is a reading"


def test_what_a_gpu_does_not_support_is_left_out(node: Node) -> None:
    node.gpus("use -1\npower_mw -1\nfail nvmlDeviceGetMemoryInfo 3", "handle 15", "lost_after 0")
    ((index, _, values),) = read(node)
    assert index == 0 and values.keys() == {"temperature", "sm_clock", "memory_clock"}


def test_without_nvml_nothing_is_said(node: Node) -> None:
    node.nvml("init 9\n")
    assert read(node) == []


def test_gpm_that_hangs_takes_no_check_with_it(node: Node) -> None:
    node.gpus("tensor 45", "tensor 45\nhang nvmlGpmSampleGet", *[""] * 6)
    command = node.command("check", "--seconds", "0", "--pod")
    ran = subprocess.run(command, env=node.environment, capture_output=True, check=True, timeout=60)
    verdicts = {each.check: each for each in decode(ran.stdout, host="node-1").verdicts}
    assert verdicts["probe.gpu_use"].status is Status.UNKNOWN
    assert verdicts["probe.gpu_use"].sample == "the probe did not answer within 10 s and was ended"
    assert verdicts["probe.gpus"].status is Status.PASS and verdicts["gpu_lost"].status is Status.PASS


def test_it_is_carried_on_with_its_age_and_gone_when_the_probe_fails(bundle: Bundle) -> None:
    bundle.node.gpus("use 97\npower_mw 500000", "use 3")
    with bundle.watching():
        wait_until(lambda: bundle.ask().gpus, "it has read the GPUs")
        said = bundle.ask()
        assert [(each.index, each.values["utilisation"]) for each in said.gpus] == [(0, 97), (1, 3)]
        assert said.gpus_age_s < 30 and said.simulated
        bundle.node.gpus("crash nvmlDeviceGetPowerUsage")
        wait_until(lambda: not bundle.ask().gpus, "the last reading is not told any more")


GPU = {"index": 0, "model": H100, "power": 640.0}


def said(**changes: Any) -> dict[str, Any]:
    return {"since_boot_s": 1000.0, "simulated": "", "gpus": [{**GPU, **changes}]}


@pytest.mark.parametrize(
    "given",
    [
        [],
        {**said(), "more": 1},
        {**said(), "since_boot_s": math.nan},
        {**said(), "gpus": {}},
        {**said(), "gpus": [GPU, GPU]},
        {**said(), "gpus": [{**GPU, "index": each} for each in range(MOST_GPUS + 1)]},
        said(index=MOST_GPUS),
        said(index=-1),
        said(index=0.5),
        said(index=True),
        said(model="H100\n} 1"),
        said(model="x" * 1000),
        said(power=math.nan),
        said(power=math.inf),
        said(power=-1),
        said(power="640"),
        said(power=True),
        said(power=10_001),
        said(tensor_active=1.01),
        said(project="somebody-else"),
    ],
)
def test_what_no_gpu_says_is_refused(given: Any) -> None:
    with pytest.raises(DocumentError):
        gpu_use_json.from_json(json.loads(json.dumps(given)))


def test_it_is_read_as_it_was_written() -> None:
    gpus = GpusSaid(1000.0, [GpuUse(7, H100, {"power": 640.0, "tensor_active": 0.45})], "a stand-in")
    assert gpu_use_json.from_json(json.loads(json.dumps(gpu_use_json.to_json(gpus)))) == gpus


def test_the_answer_of_an_agent_of_an_earlier_release_has_none(bundle: Bundle) -> None:
    answer = json.loads(json.dumps({"format": 1, "spool": "a", "version": "b", "now_s": 5.0, "last": None}))
    answer |= {"changes": [], "n": 0, "has_more": False}
    assert not delivery.decode(json.dumps(answer).encode(), host="node-1", at=0.0).gpus
