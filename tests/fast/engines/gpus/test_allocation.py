"""Allocation of GPUs: one ledger for machines and containers, and the type that was requested. The GPUs are
made up: simulated.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from neocloud.engines.base import Accelerator, EngineError, Reference
from neocloud.engines.gpu_ledger import GPU_NAMESPACE, GpuLedger, RowsInMemory, TooFewGpus, pod_holder
from neocloud.engines.manifest import Container, Pod, Volume, limits
from neocloud.engines.podman.containers import Row
from neocloud.engines.podman.gpus import cdi
from neocloud.engines.podman.gpus.allocator import GpuAllocator
from neocloud.engines.podman.gpus.discovery import FoundGpus, GpuDiscovery
from neocloud.engines.podman.gpus.passthrough import Passthrough
from neocloud.engines.podman.layout import Layout, Objects
from neocloud.engines.podman.pods import Pods
from tests.fast.engines.gpus.machine import Kernel, h100, l40s

MACHINE = "computeinstance-e00a"
MIXED = (l40s(0), l40s(1), h100(2), h100(3))


class Machine(GpuDiscovery):
    """These GPUs, all with their driver."""

    def __init__(self, kernel: Kernel, gpus: Sequence[Accelerator]) -> None:
        super().__init__(kernel.pci, lambda: ())
        self.gpus = tuple(gpus)

    async def find(self, *, is_fresh: bool = False) -> FoundGpus:
        await asyncio.sleep(0)
        return FoundGpus(self.gpus, (), {each.key: int(each.key[-1], 16) for each in self.gpus})


@pytest.fixture
def rows() -> RowsInMemory:
    return RowsInMemory()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return specified(tmp_path / "cdi", range(4))


@pytest.fixture
def machine(kernel: Kernel) -> Machine:
    return Machine(kernel, MIXED)


@pytest.fixture
async def allocator(
    kernel: Kernel, machine: Machine, rows: RowsInMemory, folder: Path, tmp_path: Path
) -> GpuAllocator:
    passthrough = Passthrough(kernel.pci, tmp_path / "gpus.json")
    made = GpuAllocator(machine, passthrough, cdi_folders=[folder])
    await made.keep_in(GpuLedger(rows.write), no_containers)
    return made


def specified(folder: Path, minors: Sequence[int], by_uuid: bool = False) -> Path:
    """Write what `nvidia-ctk cdi generate` does: names by number or by UUID."""
    folder.mkdir(exist_ok=True)
    devices = [
        {
            "name": MIXED[minor].uuid if by_uuid else str(number),
            "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}"}, {"path": "/dev/dri/card1"}]},
        }
        for number, minor in enumerate(minors)
    ]
    everything = {"deviceNodes": [{"path": f"/dev/nvidia{minor}"} for minor in minors]}
    devices.append({"name": "all", "containerEdits": everything})
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "nvidia.yaml").write_text(yaml.safe_dump(spec))
    return folder


def worker(name: str, gpus: int = 1, type_: str = "") -> Pod:
    container = Container(name="worker", image="slurm", resources=limits(cpus=1, memory_mib=64, gpus=gpus))
    return Pod(name=name, namespace="lab", containers=(container,), gpu_type=type_)


def launcher(group: str) -> Pod:
    """The pod of a virtual machine with a GPU of this IOMMU group."""
    device = Volume.of_host("group", f"/dev/vfio/{group}", "CharDevice")
    control = Volume.of_host("vfio", "/dev/vfio/vfio", "CharDevice")
    container = Container(name="machine", image="launcher")
    return Pod(name="vm", namespace="vm", containers=(container,), volumes=(control, device))


async def no_containers() -> Sequence[Row]:
    return ()


def containers(*pods: tuple[str, str]) -> list[Row]:
    """Containers of pods with these labels of GPUs."""
    return [
        {
            "Id": name,
            "State": "running",
            "Pid": 1,
            "StartedAt": 1,
            "ExitCode": 0,
            "Labels": {
                "neocloud.namespace": "lab",
                "neocloud.pod": name,
                "neocloud.container": "worker",
                cdi.LABEL: label,
            },
        }
        for name, label in pods
    ]


async def given(allocator: GpuAllocator, pod: Pod, present: Sequence[Row] = ()) -> list[str]:
    async def list_rows() -> Sequence[Row]:
        return present

    async with allocator.reserve(pod, list_rows) as devices:
        return [device.key for device in devices.get("worker", ())]


async def test_a_worker_gets_the_type_that_was_requested(allocator: GpuAllocator) -> None:
    assert await given(allocator, worker("h100-0", 2, "h100")) == [MIXED[2].key, MIXED[3].key]
    with pytest.raises(
        EngineError, match=r"needs 1 GPU\(s\) of type h100, and of 2 on this machine 0 are free"
    ):
        await given(allocator, worker("h100-1", 1, "h100"), containers(("h100-0", "")))
    assert await given(allocator, worker("any-0", 2)) == [MIXED[0].key, MIXED[1].key]


async def test_a_gpu_of_a_machine_is_no_containers(allocator: GpuAllocator, rows: RowsInMemory) -> None:
    ledger = GpuLedger(rows.write)
    await ledger.acquire(MACHINE, 1, MIXED[2:3], MIXED)
    assert await given(allocator, worker("h100-0", 1, "h100")) == [MIXED[3].key]
    with pytest.raises(TooFewGpus):
        await ledger.acquire(MACHINE, 2, MIXED[2:], MIXED)
    assert set((await ledger.holders()).values()) == {MACHINE, "pod/lab/h100-0"}


async def test_a_pod_that_is_made_again_keeps_its_gpus_until_it_is_removed(allocator: GpuAllocator) -> None:
    pod = worker("h100-0", 1, "h100")
    first = await given(allocator, pod)
    assert await given(allocator, pod) == first
    await allocator.release(pod)
    assert await given(allocator, worker("h100-1", 2, "h100")) == [MIXED[2].key, MIXED[3].key]


async def test_pods_that_start_together_share_nothing(allocator: GpuAllocator) -> None:
    found = await asyncio.gather(*(given(allocator, worker(f"any-{n}")) for n in range(4)))
    assert sorted(sum(found, [])) == sorted(each.key for each in MIXED)


async def test_a_pod_whose_containers_were_removed_by_hand_holds_nothing(allocator: GpuAllocator) -> None:
    await given(allocator, worker("h100-0", 2, "h100"))
    assert await given(allocator, worker("h100-1", 2, "h100")) == [MIXED[2].key, MIXED[3].key]


class Podman:
    """Answers which containers exist."""

    def __init__(self) -> None:
        self.containers: list[Row] = []

    async def get(self, path: str, **_: object) -> Sequence[Row]:
        assert path == "/containers/json"
        return self.containers


async def test_gpus_go_with_a_pod_whose_containers_are_removed_by_hand(
    allocator: GpuAllocator, rows: RowsInMemory, tmp_path: Path
) -> None:
    """A forced deletion leaves the pod, and to a machine's pod the GPUs of its instance."""
    podman, layout, unused = Podman(), Layout.of(tmp_path), cast(Any, None)
    objects = Objects(layout)
    pods = Pods(
        *(layout, cast(Any, podman), unused, unused, unused, objects, unused, unused),
        gpus=allocator,
        images=unused,
    )
    worker_pod, machine_pod = worker("h100-0", 2, "h100"), launcher("7")
    for pod in (worker_pod, machine_pod):
        objects.put(pod)
    await given(allocator, worker_pod)
    rows.reserve(GPU_NAMESPACE, MIXED[0].key, pod_holder(machine_pod.reference))
    podman.containers = containers(("h100-0", MIXED[2].key))
    await pods.note_removal(worker_pod.reference)
    assert len(rows.reservations(GPU_NAMESPACE)) == 3, "one of its containers is there"
    podman.containers = []
    await pods.note_removal(Reference("Pod", "lab", "other"))
    async with pods._locks[worker_pod.reference]:
        await pods.note_removal(worker_pod.reference)
    assert len(rows.reservations(GPU_NAMESPACE)) == 3, "the engine replaces it"
    for pod in (worker_pod, machine_pod):
        await pods.note_removal(pod.reference)
    assert rows.reservations(GPU_NAMESPACE) == {}


async def test_a_pod_that_gets_its_containers_while_they_are_listed_keeps_its_gpus(
    allocator: GpuAllocator, rows: RowsInMemory
) -> None:
    """The list is older than its containers, which exist when the list is read."""
    reserved, listed, created = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def create() -> None:
        async with allocator.reserve(worker("h100-0", 2, "h100"), no_containers):
            reserved.set()
            await listed.wait()
        created.set()

    async def old_list() -> Sequence[Row]:
        listed.set()
        await created.wait()
        return ()

    creating = asyncio.create_task(create())
    await reserved.wait()
    with pytest.raises(EngineError, match="0 are free"):
        async with allocator.reserve(worker("h100-1", 2, "h100"), old_list):
            pass
    await creating
    assert set((await GpuLedger(rows.write).holders()).values()) == {"pod/lab/h100-0"}


async def test_a_pod_that_is_replaced_by_one_without_gpus_holds_none(
    allocator: GpuAllocator, rows: RowsInMemory
) -> None:
    before, ledger = worker("any-0", 2), GpuLedger(rows.write)
    held = await given(allocator, before)
    await allocator.release_unneeded(before, worker("any-0", 1))
    assert list(await ledger.holders()) == held
    await allocator.release_unneeded(before, worker("any-0", 0))
    assert not await ledger.holders()


async def test_containers_of_an_earlier_release_keep_their_gpus(
    allocator: GpuAllocator, rows: RowsInMemory
) -> None:
    """They are labelled with numbers, and no ledger knows them."""
    present = containers(("old-0", "0,2"), ("cpu-0", ""))

    async def list_rows() -> Sequence[Row]:
        return present

    ledger = GpuLedger(rows.write)
    await allocator.keep_in(ledger, list_rows)
    holder = pod_holder(Reference("Pod", "lab", "old-0"))
    assert await ledger.holders() == {MIXED[0].key: holder, MIXED[2].key: holder}
    assert await given(allocator, worker("new-0", 2), present) == [MIXED[1].key, MIXED[3].key]


async def test_numbers_of_an_earlier_release_become_keys(rows: RowsInMemory) -> None:
    assert rows.reserve(GPU_NAMESPACE, "2", MACHINE) and rows.reserve(GPU_NAMESPACE, "9", "lost")
    ledger = GpuLedger(rows.write)
    (found,) = await ledger.acquire(MACHINE, 1, MIXED, MIXED)
    assert found == MIXED[2]
    assert await ledger.holders() == {MIXED[2].key: MACHINE, "9": "lost"}


async def test_all_gpus_are_reserved_or_none(rows: RowsInMemory) -> None:
    ledger = GpuLedger(rows.write)
    with pytest.raises(TooFewGpus):
        await ledger.acquire(MACHINE, 5, MIXED, MIXED)
    assert not await ledger.holders()


async def test_a_gpu_that_is_lost_is_given_up_for_another(machine: Machine, allocator: GpuAllocator) -> None:
    pod = worker("h100-0", 1, "h100")
    assert await given(allocator, pod) == [MIXED[2].key]
    machine.gpus = (*MIXED[:2], MIXED[3])
    assert await given(allocator, pod) == [MIXED[3].key]


async def test_the_group_of_a_machine_goes_to_vfio_before_its_pod_and_back_after_it(
    allocator: GpuAllocator, machine: Machine, kernel: Kernel
) -> None:
    gpu = h100(0, group="7")
    machine.gpus = (gpu,)
    kernel.add(gpu.pci_address, "7")
    pod = launcher("7")
    await allocator.bind(pod)
    assert kernel.driver(gpu.pci_address) == "vfio-pci"
    await allocator.restore_drivers([pod])
    assert kernel.driver(gpu.pci_address) == "vfio-pci"
    taken = allocator.taken()
    await allocator.restore_drivers()
    assert kernel.driver(gpu.pci_address) == "nvidia" and not allocator.taken()
    await allocator.restore_drivers_of(taken)  # as when the folder with the record is gone
    assert kernel.driver(gpu.pci_address) == "nvidia"


async def test_a_machine_whose_gpu_went_before_its_pod_is_made_gets_none(
    allocator: GpuAllocator, machine: Machine
) -> None:
    machine.gpus = ()
    with pytest.raises(EngineError, match="no GPU in IOMMU group 7 any more"):
        await allocator.bind(launcher("7"))


@pytest.mark.parametrize("by_uuid", [False, True], ids=["number", "uuid"])
def test_a_gpu_is_named_by_its_device_file_when_numbers_have_moved(tmp_path: Path, by_uuid: bool) -> None:
    """A virtual machine has /dev/nvidia1, and NVML counts 0, 1, 2 without it."""
    folder = specified(tmp_path / "cdi", (0, 2, 3), by_uuid=by_uuid)
    name = cdi.device_name(MIXED[3], 3, [folder])
    assert name == f"nvidia.com/gpu={MIXED[3].uuid if by_uuid else '2'}"


def test_a_gpu_without_a_name_is_refused_with_the_command(tmp_path: Path) -> None:
    folder = specified(tmp_path / "cdi", (0, 1))
    for text in (None, "kind: other.com/gpu\n", "[]\n"):
        if text is not None:
            (folder / "nvidia.yaml").write_text(text)
        with pytest.raises(EngineError, match="nvidia-ctk cdi generate"):
            cdi.device_name(MIXED[3], 3, [folder])
    (folder / "nvidia.yaml").write_text("devices: [")
    with pytest.raises(EngineError, match="cannot be read.*nvidia-ctk cdi generate"):
        cdi.device_name(MIXED[0], 0, [folder])
