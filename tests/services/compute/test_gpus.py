"""GPUs of machines: each is one machine's, handed over by VFIO. Decided here, not run: CMP-01."""

import pytest

from neocloud.engines.base import Accelerator
from tests.services.compute.cloud import Cloud, boot_disk, instance_spec, machine_cloud

SHAPE = {"platform": "gpu-local", "preset": "1gpu-2vcpu-8gb"}
GPUS = tuple(
    Accelerator("nvidia", "NVIDIA L40S", 46068, index, f"0000:0{index + 1}:00.0", str(10 + index))
    for index in range(2)
)


@pytest.fixture
async def cloud(tmp_path):
    async with machine_cloud(tmp_path, accelerators=GPUS) as running:
        yield running


def devices(cloud: Cloud, instance_id: str) -> set[str]:
    volumes = cloud.pod(instance_id).manifest.to_dict()["spec"]["volumes"]
    return {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


async def test_each_machine_has_gpus_of_its_own(cloud: Cloud) -> None:
    wishes = []
    for name in ("one", "two"):
        instance = await cloud.machine(name, resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"))
        wishes.append(cloud.machines.desired(instance.metadata.id)["gpus"])
        assert "/dev/vfio/vfio" in devices(cloud, instance.metadata.id)
    assert sorted(wishes) == [["0000:01:00.0"], ["0000:02:00.0"]]
    assert devices(cloud, instance.metadata.id) >= {"/dev/vfio/11"}


async def test_a_stopped_machine_gives_its_gpu_back(cloud: Cloud) -> None:
    first = await cloud.machine("one", resources=SHAPE, boot_disk=boot_disk("one-boot"))
    await cloud.machine("two", resources=SHAPE, boot_disk=boot_disk("two-boot"))
    await cloud.call("InstanceService/Stop", id=first.metadata.id)
    await cloud.until(first.metadata.id, "STOPPED")
    third = await cloud.machine("three", resources=SHAPE, boot_disk=boot_disk("three-boot"))
    assert cloud.machines.desired(third.metadata.id)["gpus"] == ["0000:01:00.0"]


async def test_a_machine_for_which_no_gpu_is_left_is_refused(cloud: Cloud) -> None:
    for name in ("one", "two"):
        await cloud.machine(name, resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"))
    spec = {"resources": SHAPE, "boot_disk": boot_disk("x")}

    refusal = await cloud.refusal(
        "InstanceService/Create",
        metadata={"parent_id": cloud.project_id, "name": "x"},
        spec=instance_spec(**spec),
    )
    assert "3 GPUs" in refusal.message and "2 are available" in refusal.message
    (detail,) = refusal.details
    assert detail.retry_type == type(detail).RetryType.Value("NOTHING")
