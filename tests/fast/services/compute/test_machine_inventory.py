import pytest

from neocloud.engines.base import Accelerator, Capabilities
from neocloud.engines.gpu_types import gpu_type
from neocloud.services.compute.capacity import Inventory


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("", "gpu"),
    ],
)
def test_a_driver_name_becomes_the_type_users_speak_of(model: str, expected: str) -> None:
    assert gpu_type(model) == expected


def test_gpus_are_counted_by_type() -> None:
    gpus = [("NVIDIA L40S", 0), ("NVIDIA L40S", 1), ("Tesla T4", 2)]
    accelerators = tuple(Accelerator("nvidia", model, 46068, index) for model, index in gpus)
    inventory = Inventory.of(Capabilities("fake", "1", 64, 262144, accelerators))
    assert inventory.gpus == {"l40s": 2, "t4": 1}
    assert inventory.gpu_count("") == 3
    assert inventory.gpu_count("h100") == 0
