"""GPUs found by NVML and sysfs, both stand-ins: simulated."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import NO_IOMMU, Accelerator
from neocloud.engines.podman.gpus.discovery import FoundGpus, GpuDiscovery
from neocloud.engines.podman.gpus.owner import GpuOwner
from neocloud.engines.podman.gpus.pci import normal_address
from tests.fast.engines.gpus.machine import VERSION_MISMATCH, Kernel, Nvml, h100, l40s


def discovery(kernel: Kernel, nvml: Nvml, passed: Sequence[Accelerator] = (), **options: Any) -> GpuDiscovery:
    return GpuDiscovery(kernel.pci, lambda: passed, **{"environment": nvml.environment, **options})


async def test_gpus_are_found_with_their_addresses_and_groups(kernel: Kernel, nvml: Nvml) -> None:
    gpus = (h100(0, group="7"), l40s(1, group="8"))
    for gpu in gpus:
        kernel.add(gpu.pci_address, gpu.iommu_group)
    nvml.answers(*gpus)
    found = await discovery(kernel, nvml).find()
    assert found == FoundGpus(gpus, (), {"GPU-00000000": 0, "GPU-00000001": 1})


async def test_a_lost_gpu_is_left_out_and_the_others_stay(kernel: Kernel, nvml: Nvml) -> None:
    gpus = (h100(0, group="7"), h100(1, group="8"), h100(2, group="9"))
    for gpu in gpus:
        kernel.add(gpu.pci_address, gpu.iommu_group)
    nvml.answers(*gpus, lost=1)
    found = await discovery(kernel, nvml).find()
    assert found.accelerators == (gpus[0], gpus[2])
    assert len(found.warnings) == 1 and "GPU 1 does not answer: GPU is lost" in found.warnings[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"init\t{VERSION_MISMATCH}", "(?i)version mismatch"),
        ("init\t9", "(?i)driver not loaded"),
        ("crash", "ended with code -6"),
    ],
)
async def test_a_driver_that_does_not_work_is_a_warning(
    kernel: Kernel, nvml: Nvml, line: str, reason: str
) -> None:
    kernel.add("0000:01:00.0", "7")
    nvml.says(line)
    found = await discovery(kernel, nvml).find()
    assert found.accelerators == ()
    (warning,) = found.warnings
    assert re.search(reason, warning)


async def test_a_driver_that_hangs_holds_nothing_up(
    kernel: Kernel, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("0000:01:00.0", "7")
    nvml.says("hang")
    hanging = discovery(kernel, nvml, answer_seconds=0.3)
    found = await hanging.find()
    assert found.accelerators == () and "did not end within 0.3 s" in found.warnings[0]

    monkeypatch.setattr(hanging, "_answer_seconds", 60)
    nvml.answers(h100(0))
    assert await hanging.find() is found  # the driver is left alone for a while
    assert (await hanging.find(is_fresh=True)).accelerators == (h100(0, group="7"),)


async def test_others_go_on_while_the_driver_is_slow(kernel: Kernel, nvml: Nvml) -> None:
    kernel.add("0000:01:00.0", "7")
    nvml.says("hang")
    search = asyncio.create_task(discovery(kernel, nvml, answer_seconds=0.3).find())
    turns = 0
    while not search.done():
        turns += 1
        await asyncio.sleep(0.01)
    assert turns > 1


async def test_a_machine_without_nvml_has_no_gpus(kernel: Kernel, nvml: Nvml, tmp_path) -> None:
    kernel.add("0000:01:00.0", "7")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**nvml.environment, "LD_LIBRARY_PATH": str(empty)}
    assert await discovery(kernel, nvml, environment=environment).find() == FoundGpus()


async def test_a_machine_without_an_nvidia_device_starts_no_process(kernel: Kernel, nvml: Nvml) -> None:
    kernel.add("0000:01:00.0", "7", driver="amdgpu", vendor="0x1002")
    nvml.says("crash")
    assert await discovery(kernel, nvml).find() == FoundGpus()


async def test_a_gpu_that_a_virtual_machine_has_is_known_from_before(kernel: Kernel, nvml: Nvml) -> None:
    gpus = (h100(0, group="7"), h100(1, group="8"))
    kernel.add(gpus[0].pci_address, "7", driver="vfio-pci")
    kernel.add(gpus[1].pci_address, "8")
    nvml.answers(replace(gpus[1], index=0))  # its number moves up
    found = await discovery(kernel, nvml, passed=[gpus[0]]).find()
    assert {each.key for each in found.accelerators} == {each.key for each in gpus}
    assert set(found.minors) == {gpus[1].key}  # only this one can be a container's


async def test_a_gpu_that_a_virtual_machine_gets_meanwhile_is_not_missed(kernel: Kernel, nvml: Nvml) -> None:
    """It was its driver's when the search began, and is not when NVML is called."""
    gpu = h100(0, group="7")
    kernel.add(gpu.pci_address, "7", driver="vfio-pci")
    nvml.answers()
    passed = iter([(), (gpu,)])
    search = GpuDiscovery(kernel.pci, lambda: next(passed), environment=nvml.environment)
    assert await search.find() == FoundGpus((gpu,))


async def test_why_virtual_machines_cannot_get_a_gpu_is_a_warning(kernel: Kernel, nvml: Nvml) -> None:
    for number in range(2):
        kernel.add(h100(number).pci_address, group="")
    nvml.answers(h100(0), h100(1))
    found = await discovery(kernel, nvml).find()
    assert [each.obstacle for each in found.accelerators] == [NO_IOMMU, NO_IOMMU]
    assert found.warnings == (f"Virtual machines cannot get GPU 0000:01:00.0, 0000:02:00.0: {NO_IOMMU}.",)


async def test_gpus_of_a_host_are_of_one_cloud_until_it_is_destroyed(
    kernel: Kernel, nvml: Nvml, tmp_path: Path
) -> None:
    """Its containers' GPUs are NVML's still, so that another cloud would give them a second time."""
    gpus = (h100(0, group="7"), l40s(1, group="8"))
    for gpu in gpus:
        kernel.add(gpu.pci_address, gpu.iommu_group)
    nvml.answers(*gpus)
    record, homes = tmp_path / "gpus.json", (tmp_path / "left", tmp_path / "right")
    for home in homes:
        home.mkdir()
    left, right = (GpuOwner(home, record) for home in homes)
    first = discovery(kernel, nvml, owner=left)
    assert (await first.find()).accelerators == gpus
    found = await discovery(kernel, nvml, passed=[gpus[1]], owner=right).find()
    assert {each.key for each in found.accelerators} == {gpus[1].key}  # what VFIO has for it stays
    assert not found.minors
    assert f"2 GPU(s) of this host are of the cloud in {homes[0]}" in found.warnings[0]
    right.give_up()
    assert (await first.find(is_fresh=True)).accelerators == gpus
    left.give_up()
    assert (await discovery(kernel, nvml, owner=right).find()).accelerators == gpus
    homes[1].rmdir()  # removed by hand
    assert left.claim() is None and right.claim() == homes[0]


def test_clouds_that_find_gpus_at_the_same_time_agree_on_one(tmp_path: Path) -> None:
    homes = [tmp_path / str(number) for number in range(8)]
    for home in homes:
        home.mkdir()
    with ThreadPoolExecutor(len(homes)) as threads:
        others = list(threads.map(lambda home: GpuOwner(home, tmp_path / "gpus.json").claim(), homes))
    (winner,) = (home for home, other in zip(homes, others, strict=True) if other is None)
    assert others.count(winner) == len(homes) - 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"home": 7}', '"home"', '{"home": "/nowhere"}'])
def test_a_record_of_no_cloud_keeps_nobody_from_the_gpus(tmp_path: Path, content: str) -> None:
    record = tmp_path / "gpus.json"
    record.write_text(content)
    assert GpuOwner(tmp_path, record).claim() is None
    assert GpuOwner(tmp_path / "other", record).claim() == tmp_path


def test_a_host_without_a_place_for_the_record_has_gpus(tmp_path: Path) -> None:
    owner = GpuOwner(tmp_path, tmp_path / "missing" / "gpus.json")
    assert owner.claim() is None
    owner.give_up()


def test_addresses_are_written_as_sysfs_does() -> None:
    assert normal_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert normal_address("0000:3b:00.0") == "0000:3b:00.0"
    assert normal_address("../../etc") == ""
