"""The engine finds the GPUs of the stand-in for NVML that the agent's checks are run against. Simulated."""

from pathlib import Path

from neocloud.engines.podman.gpus.discovery import GpuDiscovery
from neocloud.engines.podman.gpus.pci import PciBus
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Node


def discovery(node: Node, seconds: float = 10.0) -> GpuDiscovery:
    def refuse(path: Path, text: str) -> None:
        raise AssertionError(f"{path} is not to be written")

    bus = PciBus(node.root, refuse)
    return GpuDiscovery(bus, lambda: (), environment=node.environment, answer_seconds=seconds)


async def test_the_engine_finds_the_gpus_that_the_agent_checks(node: Node) -> None:
    found = await discovery(node).find()
    assert [each.pci_address for each in found.accelerators] == trees.GPUS
    assert {(each.model, each.memory_mib) for each in found.accelerators} == {
        ("NVIDIA H100 80GB HBM3", 81559)
    }
    assert not found.is_failure


async def test_a_gpu_off_the_bus_is_missed_by_both(node: Node) -> None:
    node.gpus("handle 15", *[""] * 7)
    found = await discovery(node).find()
    assert len(found.accelerators) == 7
    assert any("GPU 0 does not answer" in each for each in found.warnings)
    assert node.verdicts()["gpu_missing"].sample.startswith("1 (7 answer of 8")


async def test_a_call_that_hangs_hangs_neither(node: Node) -> None:
    node.gpus("hang nvmlDeviceGetName", *[""] * 7)
    found = await discovery(node, seconds=0.5).find()
    assert found.is_failure and "does not answer" in found.warnings[0]
